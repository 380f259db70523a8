"""The state as a reader sees it: the log folded, again and again, and what waits in the inbox shown as PENDING.

Folding calls no policy and no predictor, so any process may do it. The API is the only writer of the inbox:
what it has put there and not yet found in the log it knows itself.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Protocol

from coadapt.errors import CoadaptError
from coadapt.model import AnyEvent, JobSpec, JobSubmitted, Record, SpecChanged
from coadapt.model.snapshot import ENDED
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.advice import Advisor
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.standing import Standings
from coadapt.server.index import JobIndex
from coadapt.server.touched import touched

log = logging.getLogger(__name__)
#: Seconds for which what was read is new enough.
FRESH_S = 0.05
#: Records folded before somebody else gets a turn, and newest ones that are kept for streams.
_MOST, KEPT = 2000, 20_000


class Readable(Protocol):
    """The side of an event log that is read."""

    def read(self, after: int = -1) -> Iterable[Record]: ...


class Follower:
    """Everything the API answers from. ``waiting``: what was in the inbox, unacknowledged, at the start."""

    def __init__(
        self,
        events: Readable,
        state: SchedulerState,
        waiting: Iterable[AnyEvent] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._events, self.state, self._clock = events, state, clock
        self.index = JobIndex()
        #: Counts what happened to a job: a line made from an older count is out of date.
        self.versions: dict[str, int] = {}
        self.recent: deque[Record] = deque(maxlen=KEPT)
        self.standings = Standings()
        self.advisor = Advisor(self.standings)
        #: Called with every record, after it was folded.
        self.listeners: list[Callable[[Record], None]] = []
        #: Why nothing more can be folded; empty: all is well.
        self.broken = ""
        self._looked = -FRESH_S
        self._pending: dict[str, JobState] = {}
        self._put = 0
        self._pending_specs: dict[str, list[JobSpec]] = {}
        for job in state.jobs.values():
            self._reindex(job)
        while self.refresh(force=True):
            pass
        for event in waiting:
            self.put(event)

    @property
    def now(self) -> float:
        """The present, never before what the log says."""
        return max(self._clock(), self.state.now)

    @property
    def position(self) -> tuple[int, int]:
        """How far log and inbox are known: what was made of both at the same position is the same, but for the time."""
        return self.state.seq, self._put

    def refresh(self, *, force: bool = False) -> bool:
        """Folds what is new in the log; True if there may be more."""
        now = time.monotonic()
        if self.broken or not (force or now - self._looked >= FRESH_S):
            return False
        self._looked = now
        count = 0
        for record in islice(self._events.read(self.state.seq), _MOST):
            try:
                self._fold(record)
            except (CoadaptError, LookupError) as error:
                # old answers are better than none; /readyz says it, and a new start folds anew
                self.broken = f"record {record.seq} cannot be folded: {error}"
                log.exception("record %s cannot be folded", record.seq)
                return False
            count += 1
        return count == _MOST

    def put(self, event: AnyEvent) -> None:
        """An event is in the inbox, durable, and not yet in the log as far as we know."""
        self._put += 1
        if isinstance(event, JobSubmitted) and self.job(event.job) is None:
            order = len(self.state.jobs) + len(self._pending)
            self._pending[event.job] = JobState(event.job, event.spec, order, self.now)
            self._reindex(self._pending[event.job])
        elif isinstance(event, SpecChanged):
            self._pending_specs.setdefault(event.job, []).append(event.spec)

    def job(self, name: str) -> JobState | None:
        """The job, in the log or on its way there."""
        return self.state.jobs.get(name) or self._pending.get(name)

    def jobs(self) -> Iterator[JobState]:
        """All jobs, in order."""
        return chain(self.state.jobs.values(), self._pending.values())

    def is_pending(self, name: str) -> bool:
        """Whether the job is in the inbox only."""
        return name in self._pending

    def spec(self, job: JobState) -> JobSpec:
        """The newest that was asked for, also if the controller has not taken it yet: changes add up."""
        changes = self._pending_specs.get(job.id)
        return changes[-1] if changes else job.spec

    def _fold(self, record: Record) -> None:
        event, before = record.event, self.state.ended
        self.state.apply(record)
        self.recent.append(record)
        if isinstance(event, JobSubmitted):
            self._arrived(event.job)
        elif isinstance(event, SpecChanged):
            self._changed(event)
        for name in touched(event):
            if (job := self.state.jobs.get(name)) is not None:
                self._reindex(job)
        if self.state.ended - before not in (0, 1):
            # jobs that waited for one that failed ended with it
            self._reindex_unended()
        for listener in self.listeners:
            listener(record)

    def _arrived(self, job: str) -> None:
        if (waiting := self._pending.pop(job, None)) is not None:
            self.index.drop(waiting.order)

    def _changed(self, event: SpecChanged) -> None:
        waiting = self._pending_specs.get(event.job, [])
        if event.spec in waiting:
            del waiting[: waiting.index(event.spec) + 1]
        if not waiting:
            self._pending_specs.pop(event.job, None)

    def _reindex(self, job: JobState) -> None:
        self.versions[job.id] = self.versions.get(job.id, 0) + 1
        self.index.put(job.order, job.id, job.spec.user, job.phase)

    def _reindex_unended(self) -> None:
        for _, name in self.index.known():
            job = self.state.jobs.get(name)
            if job is not None and (job.phase in ENDED or name in self.state.blocked):
                self._reindex(job)
