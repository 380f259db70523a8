"""The read side of the API: the state folded from the log, indices over jobs, and the records about each job.

``Follower`` folds new records of the log again and again, and shows what waits in the inbox as QUEUED. Folding calls no
policy and no predictor, so any process may do it. The API is the only writer of the inbox: it remembers what it has put
there and not yet found in the log.

``JobIndex`` finds the jobs of a user or in a state among thousands, by sorted orders, so that a page costs in proportion
to its own length.

``History`` knows which records are about which job, so that a job's history is read without reading all others. It keeps
sequence numbers only, a few bytes per record. Records from before this process started are indexed in a thread; until
that is done a history may lack its beginning.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import NamedTuple, Protocol

import msgspec

from coadapt.errors import CoadaptError, StoreError
from coadapt.explain.deadline_advice import Advisor
from coadapt.explain.job_progress import Standings
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    CancelRequested,
    ClusterRestored,
    DecisionMade,
    JobSpec,
    JobSubmitted,
    Measured,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    Record,
    ReportsMerged,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
)
from coadapt.model.snapshot import ENDED, HOLDING, WAITING, ShownState
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState

Key = tuple[str | None, str]
#: A request of a user to change the state of a job.
UserRequest = CancelRequested | PauseRequested | ResumeRequested | RetryRequested


class JobIndex:
    """Jobs by (user, state), and by (None, state) for all users together."""

    def __init__(self) -> None:
        self._orders: dict[Key, list[int]] = {}
        self._where: dict[int, tuple[str, str, str]] = {}

    def put(self, order: int, job: str, user: str, state: str) -> None:
        """Sets the state of a job.

        Args:
            order: The job's number in the order of submission.
            job: Name of the job.
            user: Its user.
            state: Its present state.
        """
        before = self._where.get(order)
        entry = (job, user, state)
        if before == entry:
            return
        if before is not None:
            self.drop(order)
        self._where[order] = entry
        for key in ((None, state), (user, state)):
            insort(self._orders.setdefault(key, []), order)

    def drop(self, order: int) -> None:
        """Removes a job."""
        _, user, state = self._where.pop(order)
        for key in ((None, state), (user, state)):
            orders = self._orders[key]
            del orders[bisect_left(orders, order)]

    def page(
        self, *, user: str | None, states: Iterable[str], before: int | None, limit: int
    ) -> tuple[Sequence[str], int, int | None]:
        """Returns a page of job names, newest first, the number of all matches, and the ``before`` of the next page.

        Args:
            user: Only jobs of this user; None: of all users.
            states: Only jobs in these states.
            before: Only jobs with a smaller order; None: from the newest on.
            limit: Most jobs of the page.
        """
        lists = [orders for state in states if (orders := self._orders.get((user, state)))]
        total = sum(map(len, lists))
        parts = []
        for orders in lists:
            end = len(orders) if before is None else bisect_left(orders, before)
            parts.append(orders[max(0, end - limit - 1) : end][::-1])
        found = list(islice(heapq.merge(*parts, reverse=True), limit + 1))
        more = len(found) > limit
        found = found[:limit]
        return [self._where[order][0] for order in found], total, found[-1] if more else None

    def count(self, state: str, user: str | None = None) -> int:
        """Returns the number of jobs in a state, of one user or of all."""
        return len(self._orders.get((user, state), ()))

    def has_user(self, user: str) -> bool:
        """Returns True if there is a job of this user."""
        return any(self.count(state, user) for state in ShownState)

    def names(self, state: str) -> list[str]:
        """Returns the jobs in a state, by order."""
        return [self._where[order][0] for order in self._orders.get((None, state), ())]

    def known(self) -> list[tuple[int, str]]:
        """Returns (order, job) of all indexed jobs."""
        return [(order, entry[0]) for order, entry in self._where.items()]


def touched(event: AnyEvent) -> Iterable[str]:
    """Returns the names of the jobs that an event is about; none for events of nodes and of the controller."""
    if isinstance(event, DecisionMade):
        return {**event.targets, **event.reasons, **event.forecasts, **event.quarantined}
    if isinstance(event, ActionsIssued):
        return [action.job for action in event.actions]
    job = getattr(event, "job", None)
    return () if job is None else (job,)


log = logging.getLogger(__name__)
#: Seconds for which what was read is new enough.
FRESH_S = 0.05
#: Most records folded before other tasks run, and number of newest records kept for streams.
_MOST, KEPT = 2000, 20_000
#: Events that change the nodes or the quotas.
_OF_RESOURCES = (NodeJoined, NodeLost, NodeDrained, NodeOpened, QuotaSet, ClusterRestored)


class Readable(Protocol):
    """An event log that can be read."""

    def read(self, after: int = -1) -> Iterable[Record]: ...


class Follower:
    """The state from which the API answers.

    Args:
        events: The log to follow.
        state: State to begin with, from a snapshot; it is changed.
        waiting: Events that were in the inbox, not acknowledged, at the start.
        clock: Returns the present time.
        advanced: Called while a long log is folded at the start.
    """

    def __init__(
        self,
        events: Readable,
        state: SchedulerState,
        waiting: Iterable[AnyEvent] = (),
        *,
        clock: Callable[[], float] = time.time,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self._events, self.state, self._clock = events, state, clock
        self.index = JobIndex()
        #: Counts what happened to a job: a line made from an older count is out of date.
        self.versions: dict[str, int] = {}
        #: Number of the last record that changed nodes or quotas, on which the reasons of all waiting jobs depend.
        self.resources_seq = -1
        self.recent: deque[Record] = deque(maxlen=KEPT)
        self.standings = Standings()
        self.advisor = Advisor(self.standings)
        #: Called with every record, after it was folded.
        self.listeners: list[Callable[[Record], None]] = []
        #: Why nothing more can be folded; empty: all is well.
        self.broken = ""
        #: Whether the store could not be read at the last look.
        self.away = False
        self._looked = -FRESH_S
        self._pending: dict[str, JobState] = {}
        self._put = 0
        self._pending_specs: dict[str, list[JobSpec]] = {}
        #: Requests of users in the inbox, by job.
        self._pending_requests: dict[str, list[UserRequest]] = {}
        self._pending_quotas: dict[str, QuotaSet] = {}
        for job in state.jobs.values():
            self._reindex(job)
        while self.refresh(force=True):
            advanced()
        for event in waiting:
            self.put(event)

    @property
    def now(self) -> float:
        """The present time, never before that of the log."""
        return max(self._clock(), self.state.now)

    @property
    def position(self) -> tuple[int, int]:
        """How far log and inbox are known: what was made of both at the same position is the same, but for the time."""
        return self.state.seq, self._put

    def refresh(self, *, force: bool = False) -> bool:
        """Folds new records of the log; returns True if there may be more."""
        now = time.monotonic()
        if self.broken or not (force or now - self._looked >= FRESH_S):
            return False
        self._looked = now
        records: list[Record] = []
        try:
            records.extend(islice(self._events.read(self.state.seq), _MOST))
            self.away = False
        except StoreError as error:
            # what was folded is still true; who writes is told
            if not self.away:
                log.error("the store cannot be read; answers are as of record %s: %s", self.state.seq, error)
            self.away = True
        return self._fold_all(records)

    def _fold_all(self, records: Sequence[Record]) -> bool:
        count = 0
        for record in records:
            try:
                self._fold(record)
            except (CoadaptError, LookupError, ArithmeticError, ValueError) as error:
                # old answers are better than none; /readyz says it, and a new start folds anew
                self.broken = f"record {record.seq} cannot be folded: {error}"
                log.exception("record %s cannot be folded", record.seq)
                return False
            count += 1
        return count == _MOST

    def members(self) -> dict[str, tuple[str, ...]]:
        """Returns the members of each team that has a list of them, by the newest requests of administrators."""
        pending = {group: event.members for group, event in self._pending_quotas.items()}
        newest = {**self.state.members, **pending}
        return {team: names for team, names in newest.items() if names is not None}

    def put(self, event: AnyEvent) -> None:
        """An event is in the inbox, durable, and not yet in the log as far as we know."""
        self._put += 1
        if isinstance(event, JobSubmitted) and self.job(event.job) is None:
            order = len(self.state.jobs) + len(self._pending)
            self._pending[event.job] = JobState(event.job, event.spec, order, self.now)
            self._reindex(self._pending[event.job])
        elif isinstance(event, SpecChanged):
            self._pending_specs.setdefault(event.job, []).append(event.spec)
        elif isinstance(event, UserRequest):
            self._pending_requests.setdefault(event.job, []).append(event)
        elif isinstance(event, QuotaSet):
            self._pending_quotas[event.group] = _unsigned(event)

    def job(self, name: str) -> JobState | None:
        """Returns the job, from the log or from the inbox."""
        return self.state.jobs.get(name) or self._pending.get(name)

    def jobs(self) -> Iterator[JobState]:
        """Returns all jobs, in order."""
        return chain(self.state.jobs.values(), self._pending.values())

    def is_pending(self, name: str) -> bool:
        """Returns True if the job is in the inbox only."""
        return name in self._pending

    def pending_request(self, name: str) -> UserRequest | None:
        """Returns the newest request for the job that the controller has not taken yet."""
        waiting = self._pending_requests.get(name)
        return waiting[-1] if waiting else None

    def spec(self, job: JobState) -> JobSpec:
        """The newest that was asked for, also if the controller has not taken it yet: changes add up."""
        changes = self._pending_specs.get(job.id)
        return changes[-1] if changes else job.spec

    def granted(self, group: str) -> QuotaSet:
        """What a user or team is granted, by the newest request of an administrator."""
        if (newest := self._pending_quotas.get(group)) is not None:
            return newest
        state = self.state
        return QuotaSet(
            group=group,
            gpus=state.quotas.get(group),
            priority=state.priorities.get(group, 0),
            deadlines=state.deadlines.get(group),
            members=state.members.get(group),
        )

    def deadlines(self) -> Counter[str]:
        """Counts the jobs with a deadline that have not ended, or are to be retried, by user and team."""
        names = {name for state in (*HOLDING, *WAITING) for name in self.index.names(state)}
        names.update(name for name in self._pending_requests if self.has_deadline(name))
        found: Counter[str] = Counter()
        for name in names:
            job = self.job(name)
            if job is not None and (spec := self.spec(job)).deadline_s is not None:
                found.update({spec.user, spec.team} - {""})
        return found

    def has_deadline(self, name: str) -> bool:
        """Returns True if the job has a deadline, and has not ended or is to be retried."""
        job = self.job(name)
        if job is None or self.spec(job).deadline_s is None:
            return False
        return job.phase not in ENDED or isinstance(self.pending_request(name), RetryRequested)

    def _fold(self, record: Record) -> None:
        event, before = record.event, self.state.ended
        self.state.apply(record)
        if self.recent and record.seq != self.recent[-1].seq + 1:
            self.recent.clear()  # there are gaps where reports were merged; these are found by their place
        self.recent.append(record)
        if isinstance(event, _OF_RESOURCES):
            self.resources_seq = record.seq
        if isinstance(event, QuotaSet) and self._pending_quotas.get(event.group) == _unsigned(event):
            del self._pending_quotas[event.group]
        if isinstance(event, JobSubmitted):
            self._arrived(event.job)
        elif isinstance(event, SpecChanged):
            self._changed(event)
        elif isinstance(event, UserRequest):
            self._taken(event)
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

    def _taken(self, event: UserRequest) -> None:
        waiting = self._pending_requests.get(event.job, [])
        if event in waiting:
            del waiting[: waiting.index(event) + 1]
        if not waiting:
            self._pending_requests.pop(event.job, None)

    def _reindex(self, job: JobState) -> None:
        self.versions[job.id] = self.versions.get(job.id, 0) + 1
        self.index.put(job.order, job.id, job.spec.user, job.shown_state)

    def _reindex_unended(self) -> None:
        for _, name in self.index.known():
            job = self.state.jobs.get(name)
            if job is not None and (job.phase in ENDED or name in self.state.blocked):
                self._reindex(job)


def _unsigned(event: QuotaSet) -> QuotaSet:
    return msgspec.structs.replace(event, by="")


class _Seqs(NamedTuple):
    changes: array[int]
    measured: array[int]


class History:
    """``open_log`` opens the log anew, for the thread; ``until``: records after it are told by ``note``."""

    def __init__(self, read: Callable[[Sequence[int]], Sequence[Record]]) -> None:
        self._read = read
        self._old: dict[str, _Seqs] = {}
        self._new: dict[str, _Seqs] = {}
        #: Up to here reports that were merged are dropped.
        self._packed = -1
        self.complete = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def look_back(self, open_log: Callable[[], ReadableLog], until: int) -> None:
        """Indexes the records up to ``until``, in a thread."""
        self._thread = threading.Thread(
            target=self._look_back, args=(open_log, until), name="history", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread that indexes old records."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def note(self, record: Record) -> None:
        """Indexes a record that was appended to the log."""
        _note(self._new, record)

    def repack(self, open_log: Callable[[], PackedLog]) -> None:
        """Drops reports that were merged since the last call; may run in any thread once ``complete`` is set."""
        with closing(open_log()) as events:
            until = events.packed_until()
            if until <= self._packed:
                return
            merged: dict[str, _Seqs] = {}
            for record in events.read(max(self._packed, events.first() - 1)):
                if record.seq > until or self._stopped:
                    break
                _note(merged, record)
        for known in (self._old, self._new):
            for job, seqs in list(known.items()):
                _replace(seqs.measured, merged.get(job), until)
        self._packed = until

    def changes(self, job: str) -> list[int]:
        """Returns the records about the job except measurements."""
        return [seq for known in self._of(job) for seq in known.changes]

    def measured(self, job: str) -> list[int]:
        """Returns the job's measurements."""
        return [seq for known in self._of(job) for seq in known.measured]

    def all(self, job: str) -> list[int]:
        """Returns all records about the job, in order."""
        return list(heapq.merge(self.changes(job), self.measured(job)))

    def records(self, seqs: Sequence[int]) -> Sequence[Record]:
        """These records."""
        return self._read(seqs) if seqs else ()

    def _of(self, job: str) -> Iterator[_Seqs]:
        for known in (self._old, self._new):
            if (found := known.get(job)) is not None:
                yield found

    def _look_back(self, open_log: Callable[[], ReadableLog], until: int) -> None:
        try:
            with closing(open_log()) as events:
                for record in events.read(events.first() - 1):
                    if record.seq > until or self._stopped:
                        break
                    _note(self._old, record)
        except CoadaptError as error:
            log.warning("the beginning of the log cannot be read: %s", error)
        self.complete.set()


class ReadableLog(Readable, Protocol):
    """A log that is opened for reading and closed afterwards."""

    def first(self) -> int: ...

    def close(self) -> None: ...


class PackedLog(ReadableLog, Protocol):
    """A log whose beginning may be compacted."""

    def packed_until(self) -> int: ...


def _replace(seqs: array[int], merged: _Seqs | None, until: int) -> None:
    """Replaces the numbers up to ``until`` by those that are still in the log."""
    end = bisect_right(seqs, until)
    if end:
        first, last = seqs[0], seqs[end - 1]
        left = array("q") if merged is None else merged.measured
        seqs[:end] = left[bisect_left(left, first) : bisect_right(left, last)]


def _note(known: dict[str, _Seqs], record: Record) -> None:
    for job in touched(record.event):
        seqs = known.get(job)
        if seqs is None:
            seqs = known[job] = _Seqs(array("q"), array("q"))
        (seqs.measured if isinstance(record.event, Measured | ReportsMerged) else seqs.changes).append(
            record.seq
        )
