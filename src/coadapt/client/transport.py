"""A connection to the API, kept open between requests, with the standard library only."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.wire.api import Problem

_T = TypeVar("_T")


class UnreachableError(CoadaptError):
    """The controller does not answer."""

    exit_code = 4


class RefusedError(InputError):
    """The controller refused the request with the HTTP status ``status``."""

    def __init__(self, message: str, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class NotFoundError(RefusedError):
    """There is no such job, node or token, or it belongs to another user."""


def is_plain(text: str) -> bool:
    """Whether a text consists of visible ASCII characters, as headers and addresses must."""
    return all(32 < ord(letter) < 127 for letter in text)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # for example a port that is not a number
        good = False
    if not good or not is_plain(url):
        raise InputError(
            f"{url!r} is not the address of a controller; write for example http://127.0.0.1:8642"
        )
    return parts


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        raise InputError(f"{ca_file} is not a file of certificates in PEM ({why})") from None


#: Codes of OpenSSL for a certificate whose issuer is not known, or that signed itself.
_UNKNOWN_ISSUER = frozenset((2, 18, 19, 20, 21))


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> str:
    remedy = (
        "; set COADAPT_CA_FILE to a PEM file with the certificate of its issuer"
        if error.verify_code in _UNKNOWN_ISSUER
        else ""
    )
    return f"the certificate of {url} is not trusted: {error.verify_message}{remedy}"


class Transport:
    """Sends requests and decodes answers. A connection that the server has closed is opened again, once.

    Args:
        url: Address of the controller.
        token: Token of the user.
        timeout_s: Seconds to wait for an answer.
        ca_file: File of trusted certificates in PEM, for https; None: those of the system.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 30.0, ca_file: str | None = None) -> None:
        parts = _parts(url)
        if not is_plain(token):
            raise InputError("the token contains blanks or characters that are not ASCII; copy it again")
        self.url, self._token, self._timeout_s = url.rstrip("/"), token, timeout_s
        self._host, self._port, self._base = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self._context = _trusting(ca_file) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        answer: type[_T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> _T:
        """Sends one request and returns its decoded answer.

        Args:
            method: Method of the request.
            path: Path below the address of the controller.
            answer: Type of the answer.
            query: Parameters of the query.
            body: Body of the request: bytes, or an object that is sent as JSON.
            headers: Further headers.
        """
        try:
            data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise InputError("a name, a word of the command or a value is not UTF-8 text") from None
        status, text = self._exchange(method, self._target(path, query), data, dict(headers or {}))
        if 200 <= status < 300:
            try:
                return msgspec.json.decode(text, type=answer)
            except msgspec.DecodeError as error:
                raise UnreachableError(
                    f"the server at {self.url} is not a controller of this version ({error})"
                ) from None
        raise self._refused(status, text)

    def lines(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Yields the lines of a stream on a separate connection, until the server ends it."""
        connection = self._open(timeout_s=None)
        try:
            connection.request("GET", self._target(path, query), headers=self._headers({}))
            answer = connection.getresponse()
            if answer.status != 200:
                raise self._refused(answer.status, answer.read(1 << 16))
            for line in answer:
                yield line.decode(errors="replace").rstrip("\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _target(self, path: str, query: Mapping[str, Any] | None) -> str:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{self._base}{path}" + (f"?{urlencode(given)}" if given else "")

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        own = {"Content-Type": "application/json"}
        if self._token:
            own["Authorization"] = f"Bearer {self._token}"
        return {**own, **more}

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        fresh = self._connection is None
        try:
            return self._once(method, target, data, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            # the request may have been carried out already: only idempotent requests are repeated
            if fresh or not (method in ("GET", "PUT") or "Idempotency-Key" in headers):
                raise self._unreachable(error) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: invalid host name
            self.close()
            raise self._unreachable(error) from None
        try:
            return self._once(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None

    def _once(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._open(self._timeout_s)
        self._connection.request(method, target, body=data, headers=self._headers(headers))
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _open(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=self._context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _refused(self, status: int, text: bytes) -> CoadaptError:
        try:
            problem = msgspec.json.decode(text, type=Problem)
        except msgspec.DecodeError:
            problem = Problem(error=f"{self.url} answered with status {status} without a message")
        if status == 404:
            return NotFoundError(problem.error, status)
        if status >= 500:
            return UnreachableError(problem.error)
        return RefusedError(problem.error, status, problem.retry_after_s)

    def _unreachable(self, error: Exception) -> UnreachableError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return UnreachableError(_untrusted(self.url, error))
        why = "no answer in time" if isinstance(error, socket.timeout) else str(error) or "no answer"
        return UnreachableError(f"no controller at {self.url}: {why}; is 'coadapt serve' running?")
