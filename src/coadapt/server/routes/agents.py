"""Routes of agents on other machines: their requests are relayed to the hub as they are, and its answers back.

The API checks the token and the size, adds the token's name, and decodes nothing: agent and hub understand each other, also when they are one release
apart from each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from coadapt.executors import (
    AgentLine,
    AgentsListed,
    Declared,
    DeclareGone,
    HubAwayError,
    ListAgents,
    hub_address,
    hub_reply,
)
from coadapt.server.audit_trail import attribution
from coadapt.server.http.problems import JSON, Refused, unavailable
from coadapt.server.http.routing import Call, Handle, Route, read_body
from coadapt.wire.api import Accepted

#: Bytes of one request of an agent: a batch of reports with the last lines of replicas, or a part of a log.
MOST_BODY = 8 << 20
#: Seconds that the hub may take beyond what the agent asked it to wait.
_ANSWER_S = 45.0


async def relay(call: Call, message: bytes) -> bytes:
    """Sends one line to the hub and returns the line that it answers; Refused if no hub answers."""
    if not call.services.ships_code:
        raise Refused(
            409, "jobs run on the controller's machine only: start it with 'coadapt serve --executor joined'"
        )
    try:
        async with asyncio.timeout(_ANSWER_S):
            with hub_address(call.services.home) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=64 << 20)
            try:
                writer.write(message + b"\n")
                await writer.drain()
                answer = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        answer = b""
    if not answer.endswith(b"\n"):
        raise unavailable("the hub does not answer now; try again")
    return answer


def _relayed(tag: str) -> Handle:
    async def handle(call: Call) -> Response:
        body = await read_body(call.request, MOST_BODY)
        try:
            given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise Refused(422, "the body is not a request of an agent") from None
        if given.get("type") != msgspec.Raw(msgspec.json.encode(tag)):
            raise Refused(422, f"the body is not a request {tag!r}")
        # the hub holds a session to the token that it was joined with
        given["by"] = msgspec.Raw(msgspec.json.encode(call.caller.name))
        # one line, whatever blanks it came with
        answer = await _unless_gone(call.request, relay(call, msgspec.json.encode(given)))
        return Response(answer.rstrip(b"\n"), media_type=JSON)

    return handle


async def _unless_gone(request: Request, work_of: Coroutine[Any, Any, bytes]) -> bytes:
    """Waits for the hub only as long as the agent does: the lease must not be renewed for one that is gone."""
    work = asyncio.ensure_future(work_of)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise Refused(400, "the connection was closed")
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _listed(call: Call) -> AgentsListed:
    """What the hub says of machines and engine; nothing if jobs run on this machine, or the hub does not answer."""
    if not call.services.ships_code:
        return AgentsListed()
    try:
        answer = hub_reply(await relay(call, msgspec.json.encode(ListAgents())))
    except (Refused, HubAwayError):
        return AgentsListed()
    assert isinstance(answer, AgentsListed)
    return answer


async def joined_machines(call: Call) -> dict[str, AgentLine]:
    """Returns the machines that joined, by node."""
    return {name: each for each in (await _listed(call)).agents for name in each.nodes}


async def stays_on_one_node(call: Call) -> str:
    """Returns a sentence about machines that do not share the place of checkpoints; empty: all do, or it does not matter."""
    alone = [each for each in (await _listed(call)).agents if not each.shares_checkpoints]
    if not alone:
        return ""
    names = ", ".join(name for each in alone for name in each.nodes)
    return (
        f"Checkpoints are kept on {names} only, which does not see the directory of the controller: the job stays on that machine. "
        "To use several, serve with --checkpoints DIR that all see."
    )


async def waits_for_room(call: Call, job: str) -> str:
    """Returns what a job waits for at the engine, with the engine's own reason; empty if it does not."""
    listed = await _listed(call)
    for line in listed.waiting:
        if line.job == job and (line.units or line.reason):
            reason = line.reason or listed.engine_trouble or "no reason given"
            return f"It waits for {max(len(line.units), 1)} node(s) that the engine has not granted yet: {reason}."
    return ""


async def gone(call: Call) -> Accepted:
    """``POST /v1/nodes/{node}/gone``: an administrator vouches that no process is left on a node's machine."""
    answer = await relay(call, msgspec.json.encode(DeclareGone(node=call.path["node"])))
    declared = hub_reply(answer)
    assert isinstance(declared, Declared)
    if declared.error:
        raise Refused(404, declared.error)
    # the hub has its own journal, so this is no event of the inbox, which would name the actor by itself
    if (who := attribution()) is not None:
        call.services.audit.note(who, "node-gone", call.path["node"])
    return Accepted()


ROUTES = (
    Route("POST", "/v1/agents/exchange", _relayed("Exchange"), None, "node"),
    Route("POST", "/v1/agents/join", _relayed("Join"), None, "node"),
    Route("POST", "/v1/agents/leave", _relayed("Leave"), None, "node"),
    Route("POST", "/v1/nodes/{node}/gone", gone, Accepted, "admin", status=202),
)
