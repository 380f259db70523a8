"""Routes of the event log, as far as the caller may see it: pages of events, and a stream of server-sent events.

The stream serves a limited number of listeners without a thread for any of them. One task watches the store; listeners
wait for it. A listener that was disconnected sends the last event it saw (``Last-Event-ID``) and continues from there.
One that does not read is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coadapt.model import Record
from coadapt.server.callers import Caller
from coadapt.server.event_text import event_line
from coadapt.server.http.problems import Refused, unavailable
from coadapt.server.http.routing import Call, Route, reader_of
from coadapt.server.routes.jobs import Rows
from coadapt.wire.api import EventLine, EventPage

#: Records looked at for one answer; where none of them concerns the caller the page is empty and says where to go on.
_MOST_LOOKED = 5000


class EventsQuery(msgspec.Struct, frozen=True):
    """Events after ``after``, oldest first; with ``job`` only that job's."""

    after: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 53) - 1)] = -1
    job: str = ""
    limit: Rows = 100


def page(call: Call) -> EventPage:
    """``GET /v1/events``."""
    query, services = call.query, call.services
    visible = services.visible(call.caller)
    if query.job:
        services.seen(query.job, call.caller)
        return _of_job(call)
    services.follower.refresh()
    lines: list[EventLine] = []
    last = -1
    for record in islice(records_after(call, query.after), _MOST_LOOKED):
        last = record.seq
        if (line := event_line(record, visible)) is not None:
            lines.append(line)
            if len(lines) == query.limit:
                break
    return EventPage(events=lines, next=last if last < services.follower.state.seq and last >= 0 else None)


def records_after(call: Call, after: int) -> Iterator[Record]:
    """Returns the records after a sequence number, from memory if it reaches back so far, otherwise from the store."""
    recent = call.services.follower.recent
    if after >= call.services.follower.state.seq:
        return iter(())
    if recent and recent[0].seq <= after + 1:
        return islice(recent, after + 1 - recent[0].seq, None)
    return iter(call.services.log.read(max(after, call.services.log.first() - 1)))


def _of_job(call: Call) -> EventPage:
    query, history = call.query, call.services.history
    wanted = [seq for seq in history.all(query.job) if seq > query.after]
    records = history.records(wanted[: query.limit])
    lines = [line for each in records if (line := event_line(each, query.job.__eq__)) is not None]
    more = len(wanted) > query.limit
    return EventPage(events=lines, next=wanted[query.limit - 1] if more else None)


ROUTES = (Route("GET", "/v1/events", page, EventPage, query=EventsQuery),)

MOST_STREAMS, MOST_OF_ONE = 512, 64
HEARTBEAT_S, _SEND_S = 15.0, 30.0
#: Records turned into events before others get a turn.
_AT_ONCE = 200


class StreamQuery(msgspec.Struct, frozen=True):
    """Events after ``after``; without it, from now on."""

    after: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 53) - 1)] | None = None


class Streams:
    """Counts listeners, and wakes them when the log has grown."""

    def __init__(self) -> None:
        self._by_caller: dict[str, int] = {}
        self._grown = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of listeners."""
        return sum(self._by_caller.values())

    def wake(self) -> None:
        """Wakes the listeners: there are new records."""
        self._grown.set()
        self._grown = asyncio.Event()

    def open(self, call: Call) -> Response:
        """``GET /v1/stream``."""
        if self.count >= MOST_STREAMS or self._by_caller.get(call.caller.name, 0) >= MOST_OF_ONE:
            raise unavailable(
                f"too many event streams: {self.count} are open, at most {MOST_OF_ONE} for one caller", 10.0
            )
        follower = call.services.follower
        follower.refresh()
        after = _last_seen(call.request)
        if after is None:
            after = call.query.after
        return _Stream(self._lines(call, follower.state.seq if after is None else after), self, call.caller)

    def enter(self, caller: Caller) -> None:
        """Counts one more listener of a caller."""
        self._by_caller[caller.name] = self._by_caller.get(caller.name, 0) + 1

    def leave(self, caller: Caller) -> None:
        """Counts one less listener of a caller."""
        self._by_caller[caller.name] -= 1
        if not self._by_caller[caller.name]:
            del self._by_caller[caller.name]

    async def _lines(self, call: Call, after: int) -> AsyncIterator[bytes]:
        visible, services = call.services.visible(call.caller), call.services
        yield b": listening\n\n"
        while True:
            grown = self._grown
            records = list(islice(records_after(call, after), _AT_ONCE))
            lines = [line for record in records if (line := event_line(record, visible)) is not None]
            if records:
                after = records[-1].seq
                if lines:
                    yield b"".join(map(encoded, lines))
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(grown.wait(), HEARTBEAT_S)
            except TimeoutError:
                # a token that is void ends what it opened
                reader_of(call.request, services)
                yield b": still here\n\n"


def encoded(line: EventLine) -> bytes:
    """One event as the browser's EventSource reads it; JSON has no line breaks of its own."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (line.seq, line.kind.encode(), msgspec.json.encode(line))


def _last_seen(request: Request) -> int | None:
    given = request.headers.get("last-event-id")
    if given is None or given == "":
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise Refused(400, "Last-Event-ID must be the number of an event")
    return int(given)


class _Stream(Response):
    """Sends parts as they come; lets go of a listener that is gone, or takes nothing for half a minute."""

    def __init__(self, parts: AsyncIterator[bytes], streams: Streams, caller: Caller) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._parts, self._streams, self._caller = parts, streams, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.enter(self._caller)
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.leave(self._caller)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts:
            async with asyncio.timeout(_SEND_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def routes(streams: Streams) -> tuple[Route, ...]:
    """The stream."""
    return (Route("GET", "/v1/stream", streams.open, None, query=StreamQuery, media="text/event-stream"),)
