"""Webhooks: signed messages when a job ends, an attempt fails and is retried, or a deadline is at risk.

A message is kept in memory until it was delivered or given up. The sequence number up to which messages were sent is in
a file, so that what happened while the API was down is sent when it is back. Delivery is at least once: each message
has an id by which a repeat is recognised.

The address of a webhook is chosen by a user, so a POST uses only http and https, follows no redirects, and reaches no
internal address unless that is allowed. The address is resolved once, checked, and that very address is connected to:
a name that resolves to another one a moment later (DNS rebinding) has no effect.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.explain.deadline_advice import AT_RISK
from coadapt.model import JobFinished, Record
from coadapt.model.snapshot import ENDED
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.log_follower import touched
from coadapt.store.home import write_private

TIMEOUT_S = 10.0


class PostError(Exception):
    """A message was not delivered; ``again``: a retry may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


def checked_url(url: str) -> SplitResult:
    """Returns the parts of a URL; InputError if it may not be posted to."""
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
    """Sends a POST request; raises PostError unless the answer is 2xx.

    Args:
        url: Address of the webhook.
        body: The message.
        headers: Headers of the request.
        private: Allow addresses that are not global.
    """
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


log = logging.getLogger(__name__)
Occasion = Literal["ended", "failed", "at-risk"]
#: Seconds before each further try, and messages that wait for one address.
RETRIES_S = (1.0, 5.0, 30.0, 120.0, 600.0)
_MOST_WAITING = 10_000


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is sent, in JSON."""

    id: str
    event: Occasion
    job: str
    user: str
    state: str
    at: float
    seq: int
    text: str = ""


class Webhooks:
    """Sends messages about jobs, with one thread per address. ``note`` is called with every record.

    Args:
        urls: Addresses of the webhooks.
        key: Key that signs messages.
        cursor: File that holds the sequence number up to which messages were sent.
        private: Allow addresses that are not global.
        job: Returns the state of a job by its name.
        late: Returns the chance that a job misses its deadline; None if it has none.
        advice: Returns what the user can do about a deadline at risk.
        describe: Returns why a job is in its state.
        send: Delivers a message; see ``post``.
        retries_s: Seconds before each retry.
    """

    def __init__(
        self,
        urls: Sequence[str],
        key: bytes,
        cursor: Path,
        *,
        private: bool,
        job: Callable[[str], JobState | None],
        late: Callable[[JobState], float | None],
        advice: Callable[[JobState], str],
        describe: Callable[[JobState], str],
        send: Callable[..., None] = post,
        retries_s: Sequence[float] = RETRIES_S,
    ) -> None:
        for url in urls:
            checked_url(url)
        self._key, self._cursor, self._private = key, cursor, private
        self._job, self._late, self._advice, self._describe = job, late, advice, describe
        self._send, self._retries_s = send, retries_s
        self._queues: list[queue.Queue[Message | None]] = []
        self._told_ended: dict[str, float] = {}
        self._told_risk: set[str] = set()
        self._stopped = threading.Event()
        self._threads = [self._start(url) for url in urls]

    @property
    def told(self) -> int | None:
        """The sequence number up to which messages were sent; None if none ever was."""
        with suppress(OSError, ValueError):
            return int(self._cursor.read_text())
        return None

    def note(self, record: Record) -> None:
        """Sends the messages that a folded record gives rise to."""
        for name in touched(record.event) if self._queues else ():
            job = self._job(name)
            if job is not None and (message := self._message(record, job)) is not None:
                self._put(message)

    def save(self, seq: int) -> None:
        """Everything up to this record was put on its way, and nothing of it waits any more."""
        if self._queues and all(each.unfinished_tasks == 0 for each in self._queues) and seq != self.told:
            with suppress(CoadaptError):
                write_private(self._cursor, f"{seq}\n".encode())

    def close(self) -> None:
        """Ends the threads; messages that were not delivered are sent at the next start."""
        self._stopped.set()
        for each in self._queues:
            with suppress(queue.Full):
                each.put_nowait(None)
        for thread in self._threads:
            thread.join()

    def _message(self, record: Record, job: JobState) -> Message | None:
        if job.phase in ENDED:
            # of all records about it, the one that ended it
            if job.finished_at != record.at or self._told_ended.get(job.id) == record.at:
                return None
            self._told_ended[job.id] = record.at
            return self._about("ended", record, job)
        event = record.event
        if isinstance(event, JobFinished) and event.outcome == "failed":
            return self._about("failed", record, job)
        if job.spec.deadline_s is not None and job.id not in self._told_risk:
            late = self._late(job)
            if late is not None and late >= AT_RISK:
                self._told_risk.add(job.id)
                return self._about("at-risk", record, job, self._advice(job))
        return None

    def _about(self, occasion: Occasion, record: Record, job: JobState, text: str = "") -> Message:
        return Message(
            id=f"{record.seq}-{occasion}-{job.id}",
            event=occasion,
            job=job.id,
            user=job.spec.user,
            state=job.shown_state,
            at=record.at,
            seq=record.seq,
            text=(text or self._describe(job))[:500],
        )

    def _put(self, message: Message) -> None:
        for each in self._queues:
            try:
                each.put_nowait(message)
            except queue.Full:
                log.warning("a webhook is %s messages behind; %s is dropped", _MOST_WAITING, message.id)

    def _start(self, url: str) -> threading.Thread:
        waiting: queue.Queue[Message | None] = queue.Queue(_MOST_WAITING)
        self._queues.append(waiting)
        thread = threading.Thread(target=self._deliver, args=(url, waiting), name="webhook", daemon=True)
        thread.start()
        return thread

    def _deliver(self, url: str, waiting: queue.Queue[Message | None]) -> None:
        while not self._stopped.is_set():
            message = waiting.get()
            if message is None or not self._try(url, message):
                return  # told to end: what is left is not done
            waiting.task_done()

    def _try(self, url: str, message: Message) -> bool:
        """Delivers it or gives it up; False where we are to end before either."""
        body = msgspec.json.encode(message)
        for wait_s in (*self._retries_s, None):
            try:
                self._send(url, body, self._headers(message, body), private=self._private)
                return True
            except PostError as error:
                if not error.again or wait_s is None:
                    log.warning("webhook message %s is given up: %s", message.id, error)
                    return True
            if self._stopped.wait(wait_s):
                return False
        return True

    def _headers(self, message: Message, body: bytes) -> dict[str, str]:
        moment = str(int(time.time()))
        signature = hmac.new(self._key, f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
        return {
            "Content-Type": "application/json",
            "User-Agent": "coadapt",
            "Coadapt-Delivery": message.id,
            "Coadapt-Timestamp": moment,
            "Coadapt-Signature": f"sha256={signature}",
        }
