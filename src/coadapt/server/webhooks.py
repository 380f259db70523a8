"""Tells others when a job has ended, when an attempt failed and is tried again, and when a deadline is at risk.

A message is kept in memory until it was delivered or given up; how far the log was told is in a file, so that what happened while
the API was down is told when it is back. At least once: each message has an id by which a second one is known.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from coadapt.cluster.home import write_private
from coadapt.errors import CoadaptError
from coadapt.model import JobFinished, Record
from coadapt.model.snapshot import ENDED
from coadapt.scheduler.advice import AT_RISK
from coadapt.scheduler.job_state import JobState
from coadapt.server.posting import PostError, checked_url, post
from coadapt.server.touched import touched

log = logging.getLogger(__name__)
Occasion = Literal["ended", "failed", "at-risk"]
#: Seconds before each further try, and messages that wait for one address.
RETRIES_S = (1.0, 5.0, 30.0, 120.0, 600.0)
_MOST_WAITING = 10_000


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, as JSON."""

    id: str
    event: Occasion
    job: str
    user: str
    phase: str
    at: float
    seq: int
    text: str = ""


class Webhooks:
    """``note`` is told every record; one thread per address delivers."""

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
        send: Callable[..., None] = post,
        retries_s: Sequence[float] = RETRIES_S,
    ) -> None:
        for url in urls:
            checked_url(url)
        self._key, self._cursor, self._private = key, cursor, private
        self._job, self._late, self._advice = job, late, advice
        self._send, self._retries_s = send, retries_s
        self._queues: list[queue.Queue[Message | None]] = []
        self._told_ended: dict[str, float] = {}
        self._told_risk: set[str] = set()
        self._stopped = threading.Event()
        self._threads = [self._start(url) for url in urls]

    @property
    def told(self) -> int | None:
        """The record up to which others were told; None: nobody ever was."""
        with suppress(OSError, ValueError):
            return int(self._cursor.read_text())
        return None

    def note(self, record: Record) -> None:
        """A record was folded."""
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
        """What was not delivered is told at the next start."""
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
        event = record.event
        if not text and isinstance(event, JobFinished):
            text = f"{event.kind}: {event.reason}" if event.kind else event.reason
        return Message(
            id=f"{record.seq}-{occasion}-{job.id}",
            event=occasion,
            job=job.id,
            user=job.spec.user,
            phase=job.phase,
            at=record.at,
            seq=record.seq,
            text=text[:500],
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
