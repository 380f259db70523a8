"""What a route is, and the way of every request: who, how often, what, then the answer, and each fault a ``Problem``."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coadapt.errors import InputError
from coadapt.server.callers import Caller, bearer
from coadapt.server.decoding import decode_body, decode_query
from coadapt.server.problems import JSON, Refused
from coadapt.server.services import Services
from coadapt.wire.api import MOST_BODY, Answer
from coadapt.wire.job_token import is_token_of

log = logging.getLogger(__name__)
#: Seconds within which a body must be here.
_BODY_S = 30.0
#: Who may ask: everybody; whoever has a token; all but viewers; administrators; the job itself.
Who = Literal["open", "reader", "writer", "admin", "job"]
#: Names in paths: nothing that a file system, a header or a log could take for something else.
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}")


class NoQuery(msgspec.Struct, frozen=True):
    """A route without parameters."""


class Call(NamedTuple):
    """One request, checked."""

    services: Services
    caller: Caller
    path: dict[str, str]
    query: Any
    body: Any
    request: Request


Handle = Callable[[Call], "Answer | Response | Awaitable[Answer | Response]"]


class Route(NamedTuple):
    """One method and path, who may use it, what it takes and what it answers."""

    method: str
    path: str
    handle: Handle
    answer: type | None
    who: Who = "reader"
    body: type | None = None
    query: type = NoQuery
    status: int = 200
    #: A newer agent may send fields that we do not know.
    lenient: bool = False
    media: str = JSON


def endpoint(route: Route, services: Callable[[], Services]) -> Callable[[Request], Awaitable[Response]]:
    """The route as a function of Starlette's request."""

    async def answer(request: Request) -> Response:
        try:
            call = await _call(route, request, services())
            given = route.handle(call)
            said = await given if inspect.isawaitable(given) else given
            if isinstance(said, Response):
                return said
            return Response(msgspec.json.encode(said), status_code=route.status, media_type=JSON)
        except Refused as refused:
            return refused.response()
        except InputError as error:
            return Refused(422, str(error)).response()
        except ClientDisconnect:
            return Refused(400, "the connection was closed").response()
        except Exception:
            # the request itself stays out of the log: it may hold secrets
            log.exception("%s %s went wrong", route.method, route.path)
            return Refused(500, "something went wrong here; the log of the API says what").response()

    return answer


async def _call(route: Route, request: Request, services: Services) -> Call:
    caller = _caller(route, request, services)
    path = request.path_params
    for value in path.values():
        if not SEGMENT.fullmatch(value):
            raise Refused(404, "there is nothing of that name")
    query: Any = decode_query(request.query_params.multi_items(), route.query)
    body: Any = None
    if route.body is not None:
        _check_media(request, route.media)
        body = decode_body(await read_body(request), route.body, lenient=route.lenient)
    return Call(services, caller, path, query, body, request)


def _caller(route: Route, request: Request, services: Services) -> Caller:
    if route.who == "open":
        return Caller("", "viewer")
    address = request.client.host if request.client else ""
    try:
        headers = request.headers.getlist("authorization")
        if len(headers) > 1:
            raise Refused(400, "there are several Authorization headers")
        header = headers[0] if headers else None
        if route.who == "job":
            return _job(request.path_params["job"], header, services)
        # a browser's cookie is good for looking only: what changes something takes a token, which no other site can send
        looks = route.method == "GET" and route.who == "reader"
        caller = reader_of(request, services) if looks else services.callers.of(header)
    except Refused:
        services.strangers.take(address)
        raise
    services.limits.take(f"token {caller.name}")
    if (route.who == "admin" and caller.role != "admin") or (
        route.who == "writer" and caller.role == "viewer"
    ):
        raise Refused(403, f"a {caller.role} may not do this")
    return caller


def reader_of(request: Request, services: Services) -> Caller:
    """Who looks: by a token or, without one, by the cookie of the dashboard."""
    header = request.headers.get("authorization")
    caller = services.sessions.caller(request, services.clock()) if header is None else None
    return services.callers.of(header) if caller is None else caller


def _job(job: str, header: str | None, services: Services) -> Caller:
    """The job itself, by its token; everybody else is told that there is none."""
    if not is_token_of(services.job_key, job, bearer(header)):
        raise Refused(401, "this takes the job's own token, which its replicas find in COADAPT_JOB_TOKEN")
    services.limits.take(f"job {job}")
    return Caller(job, "viewer")


def _check_media(request: Request, media: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media:
        raise Refused(415, f"the header Content-Type must be {media}")


async def read_body(request: Request, most: int = MOST_BODY) -> bytes:
    """The whole body, if it is small enough and comes soon enough."""
    check_length(request, most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large(most)
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {_BODY_S:.0f} s") from None
    return b"".join(parts)


def check_length(request: Request, most: int) -> None:
    """Refused where the body is said to be too large: before any of it is read."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > most:
        raise too_large(most)


def too_large(most: int) -> Refused:
    """The body is."""
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
    return Refused(413, f"the body is larger than {size}")
