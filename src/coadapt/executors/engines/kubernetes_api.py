"""Requests to the API of a Kubernetes cluster: JSON over HTTPS, lists in parts, and what each answer means for an engine.

An answer of the API that says no is ``EngineRefusedError``; one that says nothing (no answer, 429, 5xx, no JSON) is ``EngineSilentError``,
from which nothing follows. All requests made here may be repeated: they name the object they are about.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from coadapt.errors import InputError
from coadapt.executors.engines._base import EngineRefusedError, EngineSilentError
from coadapt.executors.engines.kubeconfig import ClusterAccess

#: Seconds that the API may take; it may be busy or gone.
_ANSWER_S = 10.0
#: Objects in one part of a list, and how often a list may begin anew because its parts have expired.
_PART, _MOST_BEGINNINGS = 500, 3

Object = dict[str, Any]


class Answer(NamedTuple):
    """An answer of the API: HTTP status and object; of a refusal, the object says why."""

    status: int
    body: Object

    @property
    def ok(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Kubernetes' word for the kind of refusal, as AlreadyExists."""
        return str(self.body.get("reason") or "")

    @property
    def message(self) -> str:
        """Kubernetes' own words."""
        return " ".join(str(self.body.get("message") or http.client.responses.get(self.status, "")).split())[
            :400
        ]


class KubernetesApi:
    """One cluster; used by one thread.

    Args:
        access: where it is, and as whom to speak.
        answer_s: seconds that an answer may take.
    """

    def __init__(self, access: ClusterAccess, answer_s: float = _ANSWER_S) -> None:
        self.access, self._answer_s = access, answer_s
        self._connection: http.client.HTTPConnection | None = None
        parts = urlsplit(access.server)
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._tls = access.tls()

    def __del__(self) -> None:
        # adapters are dropped without a word
        self.close()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Answer:
        """Sends one request; EngineSilentError if it is not answered. What the API refuses is for the caller to judge.

        Args:
            method: GET, POST, DELETE, PUT or PATCH.
            path: from the root of the API.
            body: an object, encoded as JSON.
            query: parameters.
            content: type of the body.
        """
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else msgspec.json.encode(body)
        answer = self._ask(method, target, data, content, fresh=False)
        if answer.status == 401:
            answer = self._ask(method, target, data, content, fresh=True)
        if answer.status == 401:
            raise EngineRefusedError(
                f"Kubernetes at {self.access.server} does not accept the identity of {self.access.found} (401 {answer.message}); sign in again"
            )
        if answer.status == 429 or answer.status >= 500:
            raise EngineSilentError(
                f"Kubernetes at {self.access.server} does not answer {method} {path}: {answer.status} {answer.message}"
            )
        return answer

    def listing(self, path: str, query: Mapping[str, str], what: str, part: int = _PART) -> list[Object]:
        """Returns all objects of a list as of one moment after the call.

        Args:
            path: of the list.
            query: parameters.
            what: what is listed, for the message if it is refused.
            part: how many objects are asked for at a time.
        """
        for _ in range(_MOST_BEGINNINGS):
            found = self._parts(path, {**query, "limit": str(part)}, what)
            if found is not None:
                return found
        raise EngineSilentError(f"Kubernetes at {self.access.server} does not finish the list of {what}")

    def _parts(self, path: str, query: Mapping[str, str], what: str) -> list[Object] | None:
        """All parts of a list; None: the parts have expired, and it must begin anew."""
        found: list[Object] = []
        following = ""
        while True:
            answer = self.call("GET", path, query={**query, **({"continue": following} if following else {})})
            if answer.status == 410:
                return None
            if not answer.ok:
                raise refusal(answer, f"list {what}")
            items, meta = answer.body.get("items"), answer.body.get("metadata") or {}
            if not isinstance(items, list) and items is not None:
                raise EngineSilentError(f"Kubernetes at {self.access.server} answers no list of {what}")
            found += items or ()
            following = str(meta.get("continue") or "")
            if not following:
                return found

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, target: str, data: bytes | None, content: str, *, fresh: bool) -> Answer:
        try:
            token = self.access.credentials.token(fresh=fresh)
        except InputError as error:
            raise EngineSilentError(str(error)) from None
        headers = {"Accept": "application/json", "User-Agent": "coadapt"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {"Content-Type": content} if data is not None else {}
        kept = self._connection is not None
        try:
            return self._exchange(method, target, data, headers)
        except (ConnectionError, http.client.BadStatusLine) as error:
            if not kept:
                raise self._silent(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        try:  # the API had closed a connection that was idle
            return self._exchange(method, target, data, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None

    def _exchange(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> Answer:
        try:
            if self._connection is None:
                self._connection = self._connected()
            self._connection.request(method, target, data, dict(headers))
            answer = self._connection.getresponse()
            text = answer.read()
        except BaseException:
            self.close()
            raise
        try:
            body = msgspec.json.decode(text, type=Object)
        except msgspec.MsgspecError:
            if 200 <= answer.status < 300:
                raise EngineSilentError(
                    f"{self.access.server} is no Kubernetes API: it answers no JSON"
                ) from None
            body = {"message": text[:200].decode(errors="replace")}
        return Answer(answer.status, body)

    def _connected(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._answer_s)
        return _Connection(self._host, self._port, self._tls, self._answer_s, self.access.tls_name)

    def _silent(self, error: Exception) -> EngineSilentError:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({error.verify_message})"
        elif isinstance(error, TimeoutError):
            why = f"no answer within {self._answer_s:g} s"
        else:
            why = str(getattr(error, "strerror", None) or error or type(error).__name__)
        return EngineSilentError(f"Kubernetes at {self.access.server} does not answer: {why}")


class _Connection(http.client.HTTPSConnection):
    """A connection whose certificate may be that of another name."""

    def __init__(
        self, host: str, port: int | None, tls: ssl.SSLContext, timeout_s: float, tls_name: str
    ) -> None:
        super().__init__(host, port, timeout=timeout_s, context=tls)
        self._tls, self._tls_name = tls, tls_name

    def connect(self) -> None:
        if not self._tls_name:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._tls_name)


def refusal(answer: Answer, what: str, remedy: str = "") -> EngineRefusedError:
    """Returns the error for a request that was refused; ``what``: what was asked for, ``remedy``: what to do about it."""
    text = f"Kubernetes refuses to {what}: {answer.message} ({answer.status})"
    return EngineRefusedError(f"{text}; {remedy}" if remedy else text)


def version_of(info: Mapping[str, object]) -> tuple[int, int]:
    """Returns major and minor number of the API's release; (0, 0) if it says none. Providers write 27+."""
    numbers: Sequence[str] = [
        "".join(filter(str.isdigit, str(info.get(name) or ""))) or "0" for name in ("major", "minor")
    ]
    return int(numbers[0]), int(numbers[1])
