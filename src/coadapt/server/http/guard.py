"""ASGI middleware that checks every request before any route sees it, and adds headers to every answer.

The Host header is checked against DNS rebinding: a page in a browser that reaches a loopback address by a name of its
own does not know the token, and is refused before it can try one. There are no CORS headers, and the dashboard's cookie
is for reading only (``server.callers``): other origins can read nothing and change nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coadapt.server.http.problems import Refused

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
#: A dashboard's page says for itself what it may load.
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"x-frame-options": b"DENY",
}
#: Called with method, route's path, status and seconds.
Observe = Callable[[str, str, int, float], None]


class Guard:
    """ASGI middleware. ``hosts``: names by which the API may be addressed; empty: any."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], observe: Observe) -> None:
        self._app, self._hosts, self._observe = app, frozenset(hosts), observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in _HEADERS.items() if name not in given),
                ]
            await send(message)

        try:
            if self._hosts and host_of(scope) not in self._hosts:
                await Refused(421, "the Host header does not name this server").response()(
                    scope, receive, sent
                )
            else:
                await self._app(scope, receive, sent)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "") if route is not None else ""
            self._observe(scope["method"], path, status, time.perf_counter() - started)


def host_of(scope: Scope) -> str:
    """The Host header without its port; empty where there is none or there are several."""
    found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(found) != 1:
        return ""
    match = _HOST.fullmatch(found[0].strip().lower())
    return (match[1] or match[2]) if match else ""
