"""Routes, and the steps of every request: authentication, rate limit, decoding, the handler, and errors as ``Problem``s.

Decoding refuses unknown fields by name, and reports every error in one line.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coadapt.errors import InputError, StoreError, suggestion
from coadapt.server.audit_trail import Actor, set_actor
from coadapt.server.callers import Caller, bearer
from coadapt.server.http.problems import JSON, Refused, store_away
from coadapt.server.proxy import CHANGE_HEADER
from coadapt.server.roles import PERMITTED, Who
from coadapt.server.services import Services
from coadapt.wire.agent import is_token_of
from coadapt.wire.api import MOST_BODY, Answer

_T = TypeVar("_T")


def decode_body(data: bytes, kind: type[_T], *, lenient: bool = False) -> _T:
    """Decodes the request in ``data``. ``lenient``: ignore unknown fields, which a newer agent may send."""
    if not data:
        raise Refused(400, "the request has no body; send JSON")
    try:
        plain = msgspec.json.decode(data)
        if not lenient:
            _refuse_unknown(plain, kind, "")
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)[:300]) from None
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
    except UnicodeDecodeError:
        raise Refused(400, "the body is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None


def decode_query(items: list[tuple[str, str]], kind: type[_T]) -> _T:
    """Decodes the query's parameters, each of which may be given once."""
    given: dict[str, str] = {}
    for name, value in items:
        if name in given:
            raise Refused(400, f"the parameter {name[:40]!r} is given twice")
        given[name] = value
    _refuse_unknown(given, kind, "")
    try:
        return msgspec.convert(given, kind, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise Refused(400, str(error)[:300]) from None


def _refuse_unknown(value: Any, kind: Any, where: str) -> None:
    """Refused for a key that a struct does not have, at any depth."""
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = _fields(kind)
        for key, inner in value.items():
            if key not in fields:
                raise Refused(422, _unknown(where + key, key, fields))
            _refuse_unknown(inner, fields[key], f"{where}{key}.")
    elif isinstance(value, list | dict):
        for inner_kind in get_args(kind):
            for inner in value if isinstance(value, list) else ():
                _refuse_unknown(inner, inner_kind, where)
            if isinstance(value, dict):
                _refuse_unknown(value, inner_kind, where)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _unknown(path: str, key: str, fields: dict[str, Any]) -> str:
    return f"unknown field {path[:100]!r}; {suggestion(key, sorted(fields))}"


log = logging.getLogger(__name__)
#: Seconds within which a body must be here.
_BODY_S = 30.0
#: Names in paths: nothing that a file system, a header or a log could take for something else.
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}")


class NoQuery(msgspec.Struct, frozen=True):
    """The query of a route without parameters."""


class Call(NamedTuple):
    """One authenticated and decoded request."""

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
    """Returns the route as a function of Starlette's request."""

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
        except StoreError as error:
            log.error("%s %s: %s", route.method, route.path, error)
            return store_away().response()
        except InputError as error:
            return Refused(422, str(error)).response()
        except ClientDisconnect:
            return Refused(400, "the connection was closed").response()
        except Exception:
            # the request itself stays out of the log: it may hold secrets
            log.exception("%s %s went wrong", route.method, route.path)
            return Refused(500, "internal error; see the log of the API").response()

    return answer


async def _call(route: Route, request: Request, services: Services) -> Call:
    caller = _caller(route, request, services)
    path = request.path_params
    for value in path.values():
        if not SEGMENT.fullmatch(value):
            raise Refused(404, "not found")
    query: Any = decode_query(request.query_params.multi_items(), route.query)
    body: Any = None
    if route.body is not None:
        _check_media(request, route.media)
        body = decode_body(await read_body(request), route.body, lenient=route.lenient)
    return Call(services, caller, path, query, body, request)


def _caller(route: Route, request: Request, services: Services) -> Caller:
    address = services.proxy.address(request)
    set_actor(None)
    if route.who == "open":
        if not _known(request, services):
            # a limit of its own for each: it must not keep anybody from signing in, nor one check from another
            services.strangers.take(f"{route.path} {address}")
        return Caller("", "viewer")
    try:
        headers = request.headers.getlist("authorization")
        if len(headers) > 1:
            raise Refused(400, "there are several Authorization headers")
        header = headers[0] if headers else None
        if route.who == "job":
            return _job(request.path_params["job"], header, services)
        caller = _user(route, request, services, header)
    except Refused as refused:
        # only what fails is counted by address, which others may share; whoever is known is counted by name
        services.strangers.take(address)
        if refused.status == 401 and header is not None:
            services.audit.refused(address, f"{route.method} {route.path}: {refused}")
        raise
    services.limits.take(f"user {caller.name}")
    if caller.role not in PERMITTED[route.who]:
        raise Refused(403, f"the role {caller.role} does not permit this")
    actor = Actor(caller.name, caller.role, caller.via, address)
    set_actor(actor)
    if caller.via == "proxy":
        services.audit.proxied(actor)
    return caller


def _known(request: Request, services: Services) -> bool:
    """Whether a request that needs no token has a valid one: monitoring is then not limited with strangers."""
    try:
        services.callers.of(request.headers.get("authorization"))
    except (Refused, StoreError):
        return False
    return True


def _user(route: Route, request: Request, services: Services, header: str | None) -> Caller:
    """The user who makes the request; without a token only for looking, unless no other site can have sent it."""
    # what browsers add by themselves is good for looking only: what changes something takes what no other site can send
    if route.method == "GET" and route.who in ("reader", "operator"):
        return reader_of(request, services)
    if header is None and (caller := services.proxy.caller(request)) is not None:
        site = request.headers.get("sec-fetch-site", "none")
        if CHANGE_HEADER.lower() not in request.headers or site not in ("same-origin", "none"):
            raise Refused(401, f"send a token, or the header '{CHANGE_HEADER}: 1', to use this route")
        return caller
    return services.callers.of(header)


def reader_of(request: Request, services: Services) -> Caller:
    """Returns the caller by the token or, without one, by a trusted proxy or the dashboard's cookie."""
    header = request.headers.get("authorization")
    if header is not None:
        return services.callers.of(header)
    caller = services.proxy.caller(request) or services.sessions.caller(request, services.clock())
    return services.callers.of(None) if caller is None else caller


def _job(job: str, header: str | None, services: Services) -> Caller:
    """The job itself, by its token; everybody else is told that there is none."""
    if not is_token_of(services.job_key, job, bearer(header)):
        raise Refused(
            401, "this route needs the job's own token, which is in COADAPT_JOB_TOKEN of its replicas"
        )
    services.limits.take(f"job {job}")
    return Caller(job, "viewer")


def _check_media(request: Request, media: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media:
        raise Refused(415, f"the header Content-Type must be {media}")


async def read_body(request: Request, most: int = MOST_BODY) -> bytes:
    """Reads the whole body; Refused if it is too large or too slow."""
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
        raise Refused(408, f"the body was not received within {_BODY_S:.0f} s") from None
    return b"".join(parts)


def check_length(request: Request, most: int) -> None:
    """Raises Refused if the declared length is too large, before any of the body is read."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > most:
        raise too_large(most)


def too_large(most: int) -> Refused:
    """Returns the error for a body that is too large."""
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
    return Refused(413, f"the body is larger than {size}")
