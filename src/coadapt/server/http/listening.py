"""The listening socket of the API, and connections that are safe against slow clients.

uvicorn closes idle connections between requests, but waits without end for the rest of a request's head. Here a head
has ten seconds, and the number of connections is limited. All errors are answered as ``Problem``s.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from coadapt.errors import InputError
from coadapt.server.http.guard import LOOPBACK
from coadapt.wire.api import Problem
from coadapt.wire.serve_options import ServeOptions

HEAD_S = 10.0
#: How long a client that was answered may go on sending: one that is cut off does not see the answer.
LINGER_S = 2.0
MOST_CONNECTIONS = 2000


class Connection(H11Protocol):
    """One connection. The overridden methods are called by asyncio and by uvicorn."""

    _head_timer: asyncio.TimerHandle | None = None
    _deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio when a client has connected."""
        if len(self.connections) >= MOST_CONNECTIONS:
            transport.write(_raw("503 Service Unavailable", "there are too many connections; try again"))
            transport.close()
            return
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with a part of a request."""
        if self.transport is None or self.transport.is_closing() or self._deaf:
            return
        if self._head_timer is None and self._between_requests():
            self._await_head()
        super().data_received(data)
        if not self._deaf and not self._between_requests():
            self._head_came()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the client has disconnected."""
        self._head_came()
        if self.transport is not None:
            super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the received data is not HTTP."""
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


class Place(NamedTuple):
    """An open socket, and the URL by which it is reached."""

    socket: socket.socket
    url: str


def listen(options: ServeOptions) -> Place:
    """Opens the socket. Elsewhere than on loopback only with TLS: tokens would be there for everybody to read."""
    host, _, port_text = options.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port_text.isdigit() or int(port_text) > 65535:
        raise InputError(f"--listen {options.listen!r} is not HOST:PORT, for example 127.0.0.1:8642")
    tls = checked_tls(options)
    if host not in LOOPBACK and not tls and not _trusted(host, options.trusted_network):
        raise InputError(
            f"will not listen on {host} without TLS: tokens would be readable on the network. Give --tls-cert and "
            "--tls-key, or listen on 127.0.0.1 and reach it through ssh -L or a proxy that speaks TLS; for a private network "
            "in which everybody may read them, name it: --trusted-network 10.1.0.0/16"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol by name: asyncio switches delays off (TCP_NODELAY) only where it sees it
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, int(port_text)))
        found.listen(1024)
    except (OSError, UnicodeError) as error:
        found.close()
        raise InputError(f"cannot listen on port {port_text} of {host}: {_why(error)}") from None
    port = found.getsockname()[1]
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return Place(found, f"{'https' if tls else 'http'}://{shown}:{port}")


def _trusted(host: str, network: str) -> bool:
    """Whether an address is in the network that the administrator named as private."""
    if not network:
        return False
    try:
        named = ipaddress.ip_network(network)
    except ValueError as error:
        raise InputError(f"--trusted-network {network!r} is no network: {error}") from None
    if not named.is_private:
        raise InputError(f"--trusted-network {network} is a public network; use TLS there")
    try:
        return ipaddress.ip_address(host) in named
    except ValueError:
        raise InputError(f"--listen {host}: with --trusted-network write an address, not a name") from None


def checked_tls(options: ServeOptions) -> bool:
    """Whether it speaks TLS; InputError where certificate and key are not a pair that can be used."""
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InputError("TLS takes both, a certificate and its key (--tls-cert, --tls-key)")
    for path in (options.tls_cert, options.tls_key):
        if path and not Path(path).is_file():
            raise InputError(f"there is no file {path} for TLS")
    if not options.tls_cert:
        return False
    try:
        # for an encrypted key the API would ask for a password, which nobody could type
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            options.tls_cert, options.tls_key, password=""
        )
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise InputError(
            f"{options.tls_cert} and {options.tls_key} are no certificate and its key without a password, in PEM ({why})"
        ) from None
    return True


def _why(error: OSError | UnicodeError) -> str:
    """The reason, and what helps against it."""
    if isinstance(error, UnicodeError | socket.gaierror):
        return "no such host; name an address of this machine, for example 127.0.0.1"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{error.strerror}; another program has it: end that one, "
            "or use --listen 127.0.0.1:0, which picks a free port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{error.strerror}; it must be an address of this machine, for example 127.0.0.1"
    return f"{error.strerror}; --listen 127.0.0.1:0 picks a port that may be used"
