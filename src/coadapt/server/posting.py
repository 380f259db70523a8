"""One POST to an address that somebody chose: only http and https, no redirects, and nothing inside unless it is allowed.

The address is looked up once, checked, and that very address is connected to: a name that means another one a moment later
(DNS rebinding) leads nowhere.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from coadapt.errors import InputError

TIMEOUT_S = 10.0


class PostError(Exception):
    """It did not arrive; ``again``: trying again may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


def checked_url(url: str) -> SplitResult:
    """The URL's parts; InputError where it is none that may be posted to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError(f"webhook {url!r} is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"webhook {url!r} must be a URL that begins with http:// or https://")
    if parts.username or parts.password:
        raise InputError("a webhook's URL must not hold a password: it would be shown where the URL is")
    return parts


def post(url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> None:
    """Sends it; PostError unless the answer is 2xx."""
    parts = checked_url(url)
    assert parts.hostname is not None
    secure = parts.scheme == "https"
    address = _address(parts.hostname, parts.port or (443 if secure else 80), private=private)
    connection = _Pinned(parts.hostname, address, secure=secure)
    target = parts.path or "/"
    try:
        connection.request("POST", f"{target}?{parts.query}" if parts.query else target, body, dict(headers))
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise PostError(f"{parts.hostname} does not answer ({type(error).__name__})", again=True) from None
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise PostError(
            f"{parts.hostname} answered {status}", again=status in (408, 425, 429) or status >= 500
        )


def _address(host: str, port: int, *, private: bool) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise PostError(f"the address of {host} is not known", again=True) from None
    for *_, address in found:
        text = str(address[0])
        if private or ipaddress.ip_address(text.partition("%")[0]).is_global:
            return text, port
    raise PostError(
        f"{host} is an address inside, which webhooks may not use unless it is allowed", again=False
    )


class _Pinned(http.client.HTTPConnection):
    """Speaks to one address, whatever its name means by now."""

    def __init__(self, host: str, address: tuple[str, int], *, secure: bool) -> None:
        super().__init__(host, address[1], timeout=TIMEOUT_S)
        self._address, self._secure = address, secure
        if secure:
            self.default_port = 443

    def connect(self) -> None:
        """To the address that was checked; a certificate must be of the name."""
        self.sock = socket.create_connection(self._address, TIMEOUT_S)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
