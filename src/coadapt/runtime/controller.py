"""The controller: the loop of a live cluster, with its clock, feed, lease, watchdog and retention.

It may die at any instant; the next one folds the log, asks the keeper what runs, and goes on. The caller that makes
one chooses store, policy and executor (``live.controller_process``).

- ``Watchdog`` finds attempts that hang: no report for far longer than is usual for them, by the attempt's own step
  time and the
  distance of its reports. Attempts that have not reported yet (they may be preparing data) and jobs that never report
  are left
  alone. It emits the event ``JobHung``, which comes through the feed as any other; the scheduler decides what follows.
- ``ControllerStatus`` is published beside the log; no decision depends on it.
- ``SteadyClock`` returns unix seconds that pass at the rate of the monotonic clock.
- ``LocalFeed`` joins the executor's events and the inbox into one order. All events found in one look get the same
  time, so a burst of submissions costs one decision, and a stream of events without a pause cannot delay a decision.
- ``forget_old`` removes records that are older than the retention time, up to a snapshot from which the rest can be
  folded.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from coadapt.errors import InputError
from coadapt.model import (
    AnyEvent,
    ControllerStarted,
    JobHung,
    JobQuarantined,
    JobResized,
    JobSpec,
    JobStarted,
    Measured,
    Record,
)
from coadapt.model.lease import Make
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.runtime.code_watch import CodeWatch
from coadapt.runtime.loop import Loop, Progress, Saver
from coadapt.runtime.ports import EventLog, Executor, Inbox, LeasedLog
from coadapt.scheduler.scheduler import Scheduler
from coadapt.scheduler.state.state import SchedulerState

if TYPE_CHECKING:
    from coadapt.wire.serve_options import ServeOptions

#: Seconds between two looks; and if it was longer than this, we were stopped, and the jobs perhaps with us.
_EVERY_S, _STOPPED_S = 5.0, 30.0
#: Reports may be so many times farther apart than they ever were.
_GAPS = 5.0
#: How far apart reports of an adopted attempt are taken to be: what it did before is not known.
_ADOPTED_GAP_S = 120.0


@dataclass(slots=True)
class _Pulse:
    """One attempt: when it last gave a sign of life, and what is usual for it."""

    attempt: int
    since: float
    reports: int = 0
    gap_s: float = 0.0
    step_s: float = 0.0

    def beat(self, at: float, step_s: float) -> None:
        # the first report comes after a start-up, which says nothing of what follows
        seen = at - self.since
        self.gap_s = seen if self.reports <= 1 else max(self.gap_s, seen)
        self.reports, self.since = self.reports + 1, at
        self.step_s = step_s or self.step_s


class Watchdog:
    """Finds attempts that hang. Reports that stay out for ``factor`` times the usual step, and at least ``least_s``, are
    a hang.
    """

    def __init__(self, *, factor: float = 20.0, least_s: float = 120.0) -> None:
        self._factor, self._least_s = factor, least_s
        self._pulses: dict[str, _Pulse] = {}
        self._looked: float | None = None

    def adopt(self, state: SchedulerState, now: float) -> None:
        """Treats attempts that run when a controller takes over as if they had reported just now: no controller listened
        before.
        """
        for job in state.jobs.values():
            reported = job.measured_at is not None and job.measured_at > job.in_flight_since
            if job.phase is Phase.RUNNING and reported:
                step_s = max((row.step_s for row in job.table.rows), default=0.0)
                self._pulses[job.id] = _Pulse(job.attempt, now, 2, _ADOPTED_GAP_S, step_s)

    def hear(self, record: Record) -> None:
        """Updates the attempt that a record of the log is about."""
        event = record.event
        if isinstance(event, JobStarted | JobResized):
            self._pulses[event.job] = _Pulse(event.attempt, record.at)
        elif isinstance(event, Measured):
            pulse = self._pulses.get(event.job)
            if pulse is not None and pulse.attempt == event.attempt:
                pulse.beat(record.at, event.measurement.step_s)

    def look(self, state: SchedulerState, now: float) -> Iterator[JobHung]:
        """Returns the attempts that hang, each once."""
        if self._looked is not None and now - self._looked < _EVERY_S:
            return
        away_s = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        for name, pulse in list(self._pulses.items()):
            job = state.jobs.get(name)
            if job is None or job.phase not in HOLDING or job.attempt != pulse.attempt:
                del self._pulses[name]
                continue
            if away_s > _STOPPED_S:
                pulse.since = min(pulse.since + away_s, now)
            silent_s = now - pulse.since
            if job.phase is Phase.RUNNING and pulse.reports and silent_s > self._limit_s(pulse):
                del self._pulses[name]
                yield JobHung(job=name, attempt=pulse.attempt, silent_s=silent_s, expected_s=pulse.step_s)

    def _limit_s(self, pulse: _Pulse) -> float:
        return max(self._least_s, self._factor * pulse.step_s, _GAPS * pulse.gap_s)


#: Upper ends of the classes in which decisions are counted by how long they took, in seconds; beyond the last: the rest.
DECISION_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class ControllerStatus(msgspec.Struct, kw_only=True):
    """Counters since the store was made, as far as controllers saved them."""

    #: Decisions by class of ``DECISION_S``, the rest last; and the seconds of all together.
    decisions: list[int] = msgspec.field(default_factory=lambda: [0] * (len(DECISION_S) + 1))
    decision_s: float = 0.0
    #: Snapshots that could not be saved, and why the last one was not; empty: it was.
    snapshot_failures: int = 0
    snapshot_error: str = ""

    def snapshot(self, error: Exception | None) -> None:
        """Counts an attempt to save a snapshot."""
        self.snapshot_failures += error is not None
        self.snapshot_error = "" if error is None else f"{type(error).__name__}: {error}"[:300]

    def decided(self, seconds: float) -> None:
        """Counts a decision that took ``seconds``."""
        self.decisions[bisect_left(DECISION_S, seconds)] += 1
        self.decision_s += seconds


def read_status(data: str | None) -> ControllerStatus:
    """Decodes a saved status; counters start anew if there is none or it is of another version."""
    try:
        found = msgspec.json.decode(data or "{}", type=ControllerStatus)
    except msgspec.MsgspecError:
        return ControllerStatus()
    return found if len(found.decisions) == len(DECISION_S) + 1 else ControllerStatus()


class SteadyClock:
    """Starts at the wall clock, or at ``not_before`` if that is later, and never jumps.

    ``not_before`` is the time of the log's last record. Merely clamping a wall clock that was set back
    would not do: the clock would stand still, and every timer wait, until it has caught up.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset_s = max(time.time(), not_before) - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._offset_s


class LocalFeed:
    """Implements ``runtime.Feed`` over an executor and an inbox.

    Args:
        executor: its events come first.
        inbox: requests of users and administrators.
        clock: returns unix seconds that never go backwards (``SteadyClock``).
        poll_s: longest wait between two looks at the inbox.
        heartbeat: called with the time before every event and at every look; a controller renews its lease there.
    """

    def __init__(
        self,
        executor: Executor,
        inbox: Inbox,
        clock: Callable[[], float],
        *,
        poll_s: float = 0.05,
        heartbeat: Callable[[float], None] = lambda now: None,
    ) -> None:
        self.executor, self.inbox, self.clock = executor, inbox, clock
        self.poll_s, self.heartbeat = poll_s, heartbeat
        #: (time seen, acknowledgement, event), in order.
        self._seen: deque[tuple[float, Callable[[], None], AnyEvent]] = deque()
        self._acknowledge: Callable[[], None] | None = None
        self._stopped = False

    def now(self) -> float:
        """Returns the time of ``clock``."""
        return self.clock()

    def stop(self) -> None:
        """Makes ``next`` return at once from now on. May be called from a signal handler."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Whether the loop should end."""
        return self._stopped

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """Returns the next event not later than ``until`` with its time; None when ``until`` has come, and after
        ``stop``.
        """
        if self._acknowledge is not None:
            # asking for the next event says that the last one is in the log
            self._acknowledge()
            self._acknowledge = None
        # also between the events of one look: handling hundreds may take longer than a lease lasts
        self.heartbeat(self.clock())
        wait_s = 0.0
        while not self._stopped:
            if not self._seen:
                self._look(wait_s)
            if self._seen and (until is None or self._seen[0][0] <= until):
                at, self._acknowledge, event = self._seen.popleft()
                return at, event
            now = self.clock()
            if until is not None and now >= until:
                return None
            wait_s = self.poll_s if until is None else min(self.poll_s, until - now)
        return None

    def _look(self, wait_s: float) -> None:
        happened = self.executor.take(wait_s)
        now = self.clock()
        self.heartbeat(now)
        for cursor, event in happened:
            self._seen.append((now, partial(self.executor.acknowledge, cursor), event))
        for number, event in self.inbox.take():
            self._seen.append((now, partial(self.inbox.acknowledge, number), event))


def forget_old(events: EventLog, before: float) -> int:
    """Forgets records up to a snapshot that is older than ``before`` (unix seconds); returns how many.

    Every moment since ``before`` can still be folded to (``why --at``). The newest two snapshots are always kept:
    should one be unreadable, the one before and the records since are enough. Each call forgets one stretch between
    two snapshots, the oldest, so that the controller is not held up; it calls again.
    """
    oldest, newer, first = None, 0, events.first()
    found = events.newest_snapshot()
    while found is not None and found[0] >= first:
        seq = found[0]
        if newer >= 1 and seq > first and next(iter(events.read(seq - 1))).at <= before:
            oldest = seq
        newer, found = newer + 1, events.newest_snapshot(before=seq)
    if oldest is None:
        return 0
    events.forget(oldest)
    return oldest - first


log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 10.0, 2.0
#: Seconds between two clearings of the inbox: reports pass through it by the thousand.
TIDY_S = 300.0
#: Seconds between two looks for old records.
_FORGET_S = 3600.0
#: Seconds to the next where there may be more to clear.
_GO_ON_S = 60.0


class Controller:
    """Runs the loop of a live cluster. The constructor takes the lease; InputError while another controller has it.

    Args:
        events: the event log with its lease.
        inbox: requests of users and administrators.
        scheduler: the state machine.
        connect: makes the executor, given a function from a job's id to its specification.
        home: home directory of the cluster, to which the store is bound.
        owner: name of this controller in the lease.
        is_gone: whether the owner of an older lease no longer exists.
        saver: encodes states for snapshots; None: no snapshots.
        watchdog: finds jobs that hang; None: one with default limits.
        retain_s: age in seconds at which records are forgotten; None: never.
        progress: told what the loop does; None: nobody is told.
        code: hashes of the frozen code that is there; jobs that wait and whose code is not are left out of decisions.
        suspects: called once after the log is folded; returns jobs to quarantine before the first decision.
    """

    def __init__(
        self,
        events: LeasedLog,
        inbox: Inbox,
        scheduler: Scheduler,
        connect: Callable[[Callable[[str], JobSpec]], Executor],
        *,
        home: str,
        owner: str,
        is_gone: Callable[[str], bool],
        saver: Saver | None = None,
        watchdog: Watchdog | None = None,
        retain_s: float | None = None,
        progress: Progress | None = None,
        code: Container[str] | None = None,
        suspects: Callable[[Controller], Iterable[JobQuarantined]] = lambda controller: (),
    ) -> None:
        self.events, self.scheduler, self.retain_s = events, scheduler, retain_s
        self._inbox, self._watchdog = inbox, watchdog or Watchdog()
        self._progress, self._suspects = progress, suspects
        self._owner, self._is_gone, self._renewed, self._tidied = owner, is_gone, -LEASE_S, 0.0
        self._forgot = -_FORGET_S
        events.bind(home)
        self._status, self._said = read_status(events.status()), True
        self.clock = SteadyClock(_time_of_last(events))
        self._renew(self.clock())
        self.executor = connect(lambda job: scheduler.state.jobs[job].spec)
        self._code = None if code is None else CodeWatch(code)
        watched = Watched(inbox, self._findings)
        self.feed = LocalFeed(self.executor, watched, self.clock, heartbeat=self._renew)
        self.loop = Loop(
            scheduler,
            self.executor,
            self.feed,
            events,
            on_record=self._watchdog.hear,
            on_decision=self._decided,
            saver=saver,
            on_snapshot=self._snapshot,
            progress=_Beating(progress, self.beat),
        )

    def run(self, started: ControllerStarted) -> None:
        """Runs until ``stop``. Jobs go on afterwards; the next controller adopts them."""
        self.loop.start(started)
        for event in self._suspects(self):
            log.error("%s", event)
            self.loop.take(self.clock(), event)
        # before the first decision, which would start them
        if self._code is not None:
            for found in list(self._code.look(self.scheduler.state, self.clock())):
                self.loop.take(self.clock(), found)
        self._watchdog.adopt(self.scheduler.state, self.clock())
        log.info(
            "at work: %d jobs, %d of them active, record %d",
            len(self.scheduler.state.jobs),
            len(self.scheduler.state.active),
            self.scheduler.state.seq,
        )
        while not self.feed.stopped and self.loop.step():
            pass

    def stop(self) -> None:
        """Ends ``run`` after the present step. May be called from a signal handler."""
        self.feed.stop()

    def close(self, *, release: bool) -> None:
        """Leaves jobs and keeper alone; ``release``: the next controller need not wait."""
        if release:
            self.events.release()
        self.executor.close()

    def _findings(self) -> Iterator[AnyEvent]:
        """What the controller itself finds out: attempts that hang, and code that is missing or back."""
        state, now = self.scheduler.state, self.clock()
        yield from self._watchdog.look(state, now)
        if self._code is not None:
            yield from self._code.look(state, now)

    def _decided(self, seconds: float) -> None:
        self._status.decided(seconds)
        self._said = False

    def _snapshot(self, error: Exception | None) -> None:
        self._status.snapshot(error)
        self._said = False

    def beat(self) -> None:
        """Renews the lease and reports progress; for what takes long outside the loop."""
        self._renew(self.clock())

    def _renew(self, now: float) -> None:
        if self._progress is not None:
            self._progress.advanced()
        if now - self._renewed < RENEW_S:
            return
        self.events.acquire(self._owner, LEASE_S, now, gone=self._is_gone)
        self._renewed = now
        if not self._said:
            self.events.save_status(msgspec.json.encode(self._status).decode())
            self._said = True
        if now - self._tidied >= TIDY_S:
            self._tidied = now
            self._tidy(now)

    def _tidy(self, now: float) -> None:
        try:
            self._inbox.prune()
            if self.retain_s is not None and now - self._forgot >= _FORGET_S:
                self._forgot = now
                if forget_old(self.events, now - self.retain_s):
                    self._tidied, self._forgot = now - TIDY_S + _GO_ON_S, -_FORGET_S  # there may be more
        except InputError as error:  # it will be done another time
            log.warning("nothing was cleared away: %s", error)


class _Beating:
    """Tells ``progress``, and renews the lease meanwhile: folding a long log must not cost it."""

    def __init__(self, progress: Progress | None, beat: Callable[[], None]) -> None:
        self._progress, self._beat = progress, beat

    def handling(self, record: Record) -> None:
        """Tells that ``record`` is handled now."""
        if self._progress is not None:
            self._progress.handling(record)

    def advanced(self) -> None:
        """Tells that something was done."""
        self._beat()


class Watched:
    """An inbox that also returns the findings of the controller. These need not be durable, since it finds them
    again.
    """

    def __init__(self, inbox: Inbox, look: Callable[[], Iterator[AnyEvent]]) -> None:
        self._inbox, self._look = inbox, look

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """Returns the entries of the inbox, and findings of the controller under number -1."""
        yield from self._inbox.take()
        for event in self._look():
            log.warning("%s", event)
            yield -1, event

    def acknowledge(self, number: int) -> None:
        """Acknowledges an entry of the inbox; findings need none."""
        if number >= 0:
            self._inbox.acknowledge(number)

    def put(self, event: AnyEvent, key: str | None = None) -> int:
        """Puts an event into the inbox."""
        return self._inbox.put(event, key)

    def submit(self, make: Make, key: str | None = None) -> int:
        """Submits an event to the inbox."""
        return self._inbox.submit(make, key)

    def submit_all(self, entries: Sequence[tuple[Make, str | None]]) -> Sequence[int | InputError]:
        """Submits several events to the inbox."""
        return self._inbox.submit_all(entries)

    def prune(self, keys_kept_s: float = 86400.0) -> int:
        """Prunes the inbox."""
        return self._inbox.prune(keys_kept_s)


def _time_of_last(events: LeasedLog) -> float:
    return max((record.at for record in events.read(events.last() - 1)), default=0.0)


def scheduler_of(options: ServeOptions) -> Scheduler:
    """Makes the scheduler with the policy, placer and interval of ``options``."""
    from coadapt.plugins import PLACERS, make_policy
    from coadapt.policies._base import traits_of
    from coadapt.scheduler import FittedCurves, Scheduler

    policy = make_policy(options.policy, options.options)
    return Scheduler(
        policy,
        PLACERS.load(options.placement or policy.placer)(),
        curves=FittedCurves(step_time_model=traits_of(policy).step_time_model),
        interval_s=options.interval_s,
        min_interval_s=options.min_interval_s,
        seed=options.seed,
        quarantine=True,
    )
