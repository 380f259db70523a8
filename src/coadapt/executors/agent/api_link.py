"""The agent's connection to the hub: requests to the API over HTTP, which the agent opens.

Two threads: one asks for commands and waits for the answer (long poll), one sends reports as they come and, with or without
any, renews the lease. Whatever fails is tried again; the agent's main thread never waits for the network.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.agent.session_messages import (
    Exchange,
    Exchanged,
    HubReply,
    HubRequest,
    Join,
    Leave,
    LogRead,
    Measurements,
    ReadLog,
    Said,
    Told,
    reply_decoder,
)
from coadapt.executors.gang.messages import Report

log = logging.getLogger(__name__)
#: Reports in one request, and seconds that one may take beyond what it waits for.
_MOST_REPORTS, _ANSWER_S = 200, 10.0
_SOONEST_S, _LATEST_S = 0.1, 2.0
_CHUNK = 1 << 18


class LinkError(CoadaptError):
    """The API did not answer as it should."""


def boot_time_s() -> float:
    """Returns seconds since this machine booted, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Api:
    """The API of a controller, by its URL; each thread has a connection of its own.

    Args:
        url: http://HOST:PORT or https://HOST:PORT.
        token: of role node.
        ca: file with certificates to trust; empty: the system's.
    """

    def __init__(self, url: str, token: str, ca: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is no address of a controller; write https://HOST:PORT")
        self.host, self.port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca or None)
            except OSError as error:
                raise InputError(f"the certificates in {ca} cannot be used: {error}") from None
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._open = threading.local()

    def post(self, path: str, message: HubRequest, wait_s: float = 0.0) -> HubReply:
        """Sends a request; LinkError if it was not answered. Whatever is sent may arrive twice: all requests are numbered or named."""
        body, timeout_s = msgspec.json.encode(message), wait_s + _ANSWER_S
        kept = getattr(self._open, "connection", None) is not None
        try:
            try:
                status, data = self._post(path, body, timeout_s)
            except (ConnectionError, http.client.BadStatusLine):
                if not kept:
                    raise
                # the API was replaced since this connection was last used
                status, data = self._post(path, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(
                f"{self.host}:{self.port} does not answer: {error or type(error).__name__}"
            ) from None
        if status != 200:
            raise LinkError(f"{self.host}:{self.port} answered {status}: {_problem(data)}")
        try:
            return reply_decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise LinkError(f"{self.host}:{self.port} is no controller of this version: {error}") from None

    def _post(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        try:
            connection = self._connection(timeout_s)
            connection.request("POST", path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def get(self, path: str) -> Iterator[Iterator[bytes]]:
        """Yields the parts of a file; LinkError if it is not there."""
        connection = self._connection(60.0)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise LinkError(f"GET {path}: {answer.status} {_problem(answer.read(4096))}")
            yield iter(lambda: answer.read(_CHUNK), b"")
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(f"GET {path}: {error}") from None
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection of this thread."""
        connection = getattr(self._open, "connection", None)
        if connection is not None:
            connection.close()
            self._open.connection = None

    def own_address(self) -> str:
        """Returns the address of this machine on the way to the API; InputError if there is no way."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            raise InputError(f"cannot reach {self.host}: {error.strerror}") from None

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._open, "connection", None)
        if found is None:
            if self._tls is not None:
                found = http.client.HTTPSConnection(
                    self.host, self.port, timeout=timeout_s, context=self._tls
                )
            else:
                found = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
            self._open.connection = found
        elif found.sock is not None:
            found.sock.settimeout(timeout_s)
        return found


def _problem(data: bytes) -> str:
    try:
        return str(msgspec.json.decode(data, type=dict[str, object]).get("error", ""))[:300]
    except msgspec.MsgspecError:
        return data[:100].decode(errors="replace")


class Link:
    """One session. ``start`` is called once it is let in.

    Args:
        api: where requests go.
        session: name of the session.
        renewed: called with the moment, by CLOCK_BOOTTIME, at which an answered request was sent.
        wake: called when there is something for the main thread.
    """

    def __init__(
        self, api: Api, session: str, *, renewed: Callable[[float], None], wake: Callable[[], None]
    ) -> None:
        self.api, self.session = api, session
        self._renewed, self._wake = renewed, wake
        #: Why the session is over; empty: it is not.
        self.over = ""
        #: Whether the hub has asked the agent to leave.
        self.told_to_leave = False
        self._changed = threading.Condition()
        self._received = self._last = 0
        self._commands: deque[Told] = deque()
        self._reads: deque[ReadLog] = deque()
        self._unsaid: deque[Said] = deque()
        self._answers: list[LogRead] = []
        #: The last failure, said once.
        self._complaint = ""

    def join(self, request: Join) -> HubReply:
        """Asks to be let in; LinkError if nobody answers."""
        return self.api.post("/v1/agents/join", request)

    def start(self, lease_s: float) -> None:
        """Begins to listen and to report."""
        self._renew_s, self._wait_s = min(lease_s / 6, 5.0), min(lease_s / 4, 20.0)
        for work in (self._listen, self._report):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def say(self, job: str, attempt: int, report: Report | Measurements) -> None:
        """Queues a report."""
        with self._changed:
            self._last += 1
            self._unsaid.append(Said(number=self._last, job=job, attempt=attempt, report=report))
            self._changed.notify()

    def answer(self, read: LogRead) -> None:
        """Queues output that was asked for."""
        with self._changed:
            self._answers.append(read)
            self._changed.notify()

    def take(self) -> tuple[list[Told], list[ReadLog]]:
        """Returns commands and questions that have come, each once."""
        with self._changed:
            commands, reads = list(self._commands), list(self._reads)
            self._commands.clear()
            self._reads.clear()
        return commands, reads

    @property
    def all_said(self) -> bool:
        """Whether every report is durable at the hub."""
        with self._changed:
            return not self._unsaid

    def leave(self) -> None:
        """Says that nothing is left here; LinkError if nobody answers."""
        self.api.post("/v1/agents/leave", Leave(session=self.session))

    def _listen(self) -> None:
        pause_s = _SOONEST_S
        while not self.over:
            with self._changed:
                request = Exchange(session=self.session, received=self._received, wait_s=self._wait_s)
            pause_s = self._try(request, pause_s)

    def _report(self) -> None:
        pause_s = _SOONEST_S
        while not self.over:
            with self._changed:
                if not self._unsaid and not self._answers:
                    self._changed.wait(self._renew_s)
                logs, self._answers = tuple(self._answers), []
                request = Exchange(
                    session=self.session,
                    received=self._received,
                    reports=tuple(self._unsaid)[:_MOST_REPORTS],
                    logs=logs,
                )
            pause_s = self._try(request, pause_s)

    def _try(self, request: Exchange, pause_s: float) -> float:
        """Sends a request and takes the answer; returns how long to wait after the next failure."""
        sent_at = boot_time_s()
        try:
            answer = self.api.post("/v1/agents/exchange", request, request.wait_s)
            assert isinstance(answer, Exchanged)
        except LinkError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("%s; trying again", error)
            time.sleep(pause_s)
            return min(2 * pause_s, _LATEST_S)
        if self._complaint:
            self._complaint = ""
            log.info("the controller answers again")
        if not answer.over:
            self._renewed(sent_at)
        self._take(answer)
        return _SOONEST_S

    def _take(self, answer: Exchanged) -> None:
        with self._changed:
            self.over = self.over or answer.over
            asked, self.told_to_leave = (
                answer.leave and not self.told_to_leave,
                self.told_to_leave or answer.leave,
            )
            for told in answer.commands:
                if told.number > self._received:
                    self._received = told.number
                    self._commands.append(told)
            self._reads += answer.reads
            while self._unsaid and self._unsaid[0].number <= answer.acknowledged:
                self._unsaid.popleft()
            news = bool(self._commands or self._reads or self.over or asked)
        if news:
            self._wake()


def fetch(api: Api, sha: str, into: Path) -> None:
    """Downloads the packed code ``sha`` into a file; LinkError if it is not there. The caller checks its hash."""
    with api.get(f"/v1/code/{sha}") as parts, into.open("wb") as file:
        for part in parts:
            file.write(part)
