"""Where the API listens, and under what conditions."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from coadapt.errors import InputError
from coadapt.server.guard import LOOPBACK
from coadapt.wire.serve import ServeOptions


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
    if host not in LOOPBACK and not tls:
        raise InputError(
            f"will not listen on {host} without TLS: tokens would be readable on the network. Give --tls-cert and "
            "--tls-key, or listen on 127.0.0.1 and reach it through ssh -L or a proxy that speaks TLS"
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
        # an encrypted key would have the API ask for a password, where nobody is
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
