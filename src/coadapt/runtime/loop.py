"""The loop: takes the next event, asks the scheduler, appends to the log, and only then acts.

Write-ahead: a fact is in the log before the scheduler's answer to it is applied, and decisions are in
the log before their actions are. A loop that dies anywhere is replaced by another that folds the log,
compares it with what is running, and applies again what was issued and not confirmed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from coadapt.errors import InvariantError
from coadapt.model import (
    Action,
    ActionsIssued,
    AnyEvent,
    ControllerStarted,
    DecisionMade,
    JobResized,
    JobStarted,
    JobStopped,
    Record,
    ResizeJob,
    StartJob,
    StopJob,
    Woke,
)
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.runtime.ports import EventLog, Feed, LoopExecutor
from coadapt.scheduler.scheduler import Scheduler
from coadapt.scheduler.state.state import SchedulerState

log = logging.getLogger(__name__)

#: Records between two snapshots: a start folds no more than about so many.
SNAPSHOT_EVERY = 10_000
#: Records folded between two signs of progress.
_FOLDED = 500


class Saver(Protocol):
    """Encodes and decodes a state; implemented by ``coadapt.scheduler.state.saved_state``."""

    def save(self, state: SchedulerState) -> bytes: ...

    def load(self, data: bytes) -> SchedulerState: ...


class Progress(Protocol):
    """Told how far the loop is, so that another process can see that it does not hang."""

    def handling(self, record: Record) -> None:
        """The loop begins to handle ``record``, which is not in the log yet."""

    def advanced(self) -> None:
        """Something was done; nothing is being handled."""


class Loop:
    """Joins scheduler, executor, feed and log. ``step`` handles one event.

    Args:
        scheduler: the state machine.
        executor: carries out actions.
        feed: returns the next event with its time.
        events: the log that every record is appended to.
        on_record: called with every record.
        on_decision: called with the seconds that each decision took: curves, policy, placer and checks together.
        saver: encodes states for snapshots; None: no snapshots.
        snapshot_every: number of records between two snapshots.
        on_snapshot: called after each attempt to save a snapshot, with the error or None.
        progress: told what the loop does; None: nobody is told.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: LoopExecutor,
        feed: Feed,
        events: EventLog,
        *,
        on_record: Callable[[Record], None] | None = None,
        on_decision: Callable[[float], None] | None = None,
        saver: Saver | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        on_snapshot: Callable[[Exception | None], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.scheduler, self.executor, self.feed, self.events = scheduler, executor, feed, events
        #: Told every record, and how many seconds each decision took: curves, policy, placer and checks together.
        self.on_record, self.on_decision = on_record, on_decision
        self._saver, self._snapshot_every = saver, snapshot_every
        self._on_snapshot, self._progress = on_snapshot, progress
        self._seq = events.last()
        #: Of the last snapshot, or of the last that could not be written.
        self._saved = -1
        #: True once an append failed: the state is then ahead of the log, and must not be built upon.
        self._ahead = False

    def start(self, event: ControllerStarted) -> None:
        """Folds the log, states that a controller took over, and settles what is in doubt."""
        if self._saver is not None:
            restored = restore(self.events, self._saver)
            if restored is not None:
                self.scheduler.state, self._saved = restored, restored.seq
        self.scheduler.fold(self._counted(self.events.read(self._saved)))
        self.take(self.feed.now(), event)
        self.reconcile()

    def _counted(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records; folding many of them is progress, too."""
        for number, record in enumerate(records):
            if self._progress is not None and number % _FOLDED == 0:
                self._progress.advanced()
            yield record

    def step(self) -> bool:
        """Handles the next event; False when nothing will ever happen again."""
        wake_at = self.scheduler.wake_at
        arrived = self.feed.next(wake_at)
        if arrived is not None:
            self.take(*arrived)
            return True
        if wake_at is None:
            return False
        self.take(self.feed.now(), Woke())
        return True

    def run(self) -> None:
        """Steps until nothing will ever happen again (a simulation's end)."""
        while self.step():
            pass

    def take(self, at: float, event: AnyEvent) -> None:
        """One fact: into the log with the scheduler's answer, then the answer's actions are applied."""
        if self._ahead:
            raise InvariantError("the log refused a record before; this controller must end and start anew")
        state = self.scheduler.state
        # a clock that jumps back is clamped: order is the sequence number
        record = Record(seq=self._seq + 1, at=at if at > state.now else state.now, event=event)
        if self._progress is not None:
            self._progress.handling(record)
        began = time.perf_counter()
        answer = self.scheduler.handle(record)
        if self._progress is not None:
            self._progress.advanced()
        if self.on_decision is not None and any(isinstance(each, DecisionMade) for each in answer):
            self.on_decision(time.perf_counter() - began)
        records = [record]
        for number, decided in enumerate(answer, start=record.seq + 1):
            records.append(Record(seq=number, at=record.at, event=decided))
        self._ahead = True
        self.events.append(records)
        self._ahead = False
        self._seq += len(records)
        if self.on_record is not None:
            for each in records:
                self.on_record(each)
        for decided in answer:
            if isinstance(decided, ActionsIssued):
                self.executor.apply(decided.actions)
        if self._saver is not None and self._seq - self._saved >= self._snapshot_every:
            self.save_snapshot(self._saver)

    def save_snapshot(self, saver: Saver) -> None:
        """Saves a snapshot, so that the next start need not fold everything.

        Nothing depends on it: whatever fails is logged and reported, and tried again ``snapshot_every`` records later.
        """
        self._saved = self._seq
        fault: Exception | None = None
        try:
            self.events.save_snapshot(self._seq, saver.save(self.scheduler.state))
        except Exception as error:
            fault = error
            log.error("no snapshot was saved; the log is complete without it: %s", error, exc_info=error)
        if self._on_snapshot is not None:
            self._on_snapshot(fault)

    def reconcile(self) -> None:
        """Compares the state with what is running, after a start or a doubt.

        What should run and does is adopted; what should not is stopped; what should and does not is
        gone. Actions issued and not confirmed are applied again, which does nothing twice.
        """
        running = {(r.job, r.attempt): r for r in self.executor.inventory()}
        jobs = self.scheduler.state.jobs
        again: list[Action] = [job.in_flight for job in jobs.values() if job.in_flight is not None]
        self.executor.apply(sorted(again, key=lambda action: action.id))
        for (name, attempt), found in running.items():
            if found.ended:
                continue  # its end is the feed's to tell
            known = jobs.get(name)
            if known is None or known.phase not in HOLDING or known.attempt != attempt:
                log.warning("stopping attempt %s of job %s, which should not run", attempt, name)
                self.executor.apply([StopJob(id=-1, job=name, attempt=attempt, why="cancel")])
            elif known.phase is Phase.STARTING:
                self.take(self.feed.now(), JobStarted(job=name, attempt=attempt))
            elif isinstance(known.in_flight, ResizeJob) and found.placement == known.in_flight.placement:
                # what was asked for, not the target: that may have gone back to the old placement since
                self.take(self.feed.now(), JobResized(job=name, attempt=attempt, placement=found.placement))
        for job in list(jobs.values()):
            # a start under way was just applied again; any other unknown attempt is gone
            starting = isinstance(job.in_flight, StartJob)
            if job.phase in HOLDING and not starting and (job.id, job.attempt) not in running:
                self.take(self.feed.now(), JobStopped(job=job.id, attempt=job.attempt, cause="lost"))


def restore(events: EventLog, saver: Saver) -> SchedulerState | None:
    """Returns the state of the newest snapshot that can be loaded; None if there is none and the whole log must be
    folded.
    """
    found = events.newest_snapshot()
    while found is not None:
        seq, data = found
        try:
            state = saver.load(data)
            if state.seq != seq:
                raise InvariantError(f"it is of record {state.seq}")
            return state
        except (
            Exception
        ) as error:  # whatever is wrong with it: a snapshot only saves time, the log has it all
            log.warning("the snapshot of record %s is passed over: %s", seq, error)
            found = events.newest_snapshot(before=seq)
    return None
