"""uvicorn's connections, made safe against clients that are slow on purpose, and all faults said as ``Problem``s.

uvicorn ends idle connections between requests, but waits without end for the rest of a request's head. Here a head has ten
seconds, and there are only so many connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from coadapt.wire.api import Problem

HEAD_S = 10.0
#: How long a client that was answered may go on sending: one that is cut off does not see the answer.
LINGER_S = 2.0
MOST_CONNECTIONS = 2000


class Connection(H11Protocol):
    """One connection. What is overridden is called by asyncio and by uvicorn."""

    _head_timer: asyncio.TimerHandle | None = None
    _deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        if len(self.connections) >= MOST_CONNECTIONS:
            transport.write(_raw("503 Service Unavailable", "there are too many connections; try again"))
            transport.close()
            return
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Part of a request."""
        if self.transport is None or self.transport.is_closing() or self._deaf:
            return
        if self._head_timer is None and self._between_requests():
            self._await_head()
        super().data_received(data)
        if not self._deaf and not self._between_requests():
            self._head_came()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._head_came()
        if self.transport is not None:
            super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self.transport.write(_raw("400 Bad Request", "this is not a request of HTTP"))
        if not self._between_requests():
            self.transport.close()
            return
        self._deaf = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_came()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _between_requests(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._too_slow)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._between_requests() and not self.transport.is_closing():
            self.transport.close()


def _raw(status: str, error: str) -> bytes:
    body = msgspec.json.encode(Problem(error=error))
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
