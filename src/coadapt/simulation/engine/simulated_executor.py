"""The simulated executor: carries out actions in virtual time, with modelled durations and costs of changes.

It passes through every state a real executor does: a start takes its change cost before ``JobStarted``; a resize first
releases what it leaves, then takes its cost; a stop takes ``stop_s``. A resize in place continues at the old size for
``ready_s``, while the new replicas get ready, before any of that. The executor can start from any ``SchedulerState``,
so that a live queue can be simulated forward.

The cost of a change of placement (``ChangeCost``) is the time without progress while the GPUs are held, in seconds.

``Timeline`` is virtual time: a heap of (time, priority, sequence), and the ``Feed`` the loop takes events from.
At one instant the executor's own events come first, then submissions and faults; the loop's timer comes
last, because ``next`` answers None only when nothing is left up to that time. So all facts of an instant
are in before the decision of that instant.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from coadapt.model import (
    NOWHERE,
    Action,
    AnyEvent,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    Measured,
    Placement,
    ReplicasReleased,
    ResizeJob,
    StartJob,
    StopJob,
)
from coadapt.model.events import StopCause
from coadapt.model.snapshot import HOLDING
from coadapt.runtime import Running
from coadapt.scheduler import SchedulerState
from coadapt.simulation.engine.gpu_sharing import GpuSharing, Partners, joined
from coadapt.simulation.engine.interference import (
    NONE,
    Crowds,
    FlatInterference,
    Interference,
    Link,
    Slowdown,
)
from coadapt.simulation.engine.training_model import Training

#: (job, placement before, placement after) -> seconds
ChangeCost = Callable[[JobSpec, Placement, Placement], float]
_CAUSES: dict[str, StopCause] = {
    "pause": "paused",
    "cancel": "cancelled",
    "drain": "drained",
    "node-lost": "node-lost",
    # the scheduler knows what it stopped it for
    "hang": "paused",
    "time-limit": "paused",
}
#: Priorities at equal times.
EXECUTOR, OUTSIDE = 0, 1


def constant(seconds: float) -> ChangeCost:
    """Returns a cost that is the same for every job and change, as in the published simulations (30 s)."""
    return lambda spec, before, after: seconds


@dataclass(slots=True)
class _Attempt:
    """One attempt that holds virtual GPUs. ``stage`` fences events scheduled before the last change."""

    job: str
    attempt: int
    spec: JobSpec
    training: Training
    placement: Placement
    stage: int = 0
    #: Fences a resize that waits for its newcomers: training goes through stages meanwhile.
    change: int = 0
    training_now: bool = False
    #: By others on its links, and by others on its GPUs.
    crowded: Slowdown = NONE
    beside: Slowdown = NONE


@dataclass(slots=True, kw_only=True)
class SimulatedExecutor:
    """Implements ``runtime.Executor`` on a ``Timeline``.

    ``spec_of`` returns a job's specification and ``train`` makes its training: the caller that submits the jobs provides
    both, so that the executor knows no trace and no profile. ``link_of`` returns the speed of a node's link in bytes/s, None
    if it is not stated. ``ready_s`` has the signature of ``change_cost``; None: replicas are started anew.
    """

    timeline: Timeline
    spec_of: Callable[[str], JobSpec]
    train: Callable[[str, JobSpec], Training]
    change_cost: ChangeCost = field(default_factory=lambda: constant(30.0))
    interference: Interference = field(default_factory=FlatInterference)
    link_of: Callable[[str], float | None] = lambda node: None
    stop_s: float = 0.0
    ready_s: ChangeCost | None = None
    sharing: GpuSharing = field(default_factory=GpuSharing)
    _trainings: dict[str, Training] = field(default_factory=dict)
    _attempts: dict[str, _Attempt] = field(default_factory=dict)
    _crowds: Crowds = field(default_factory=Crowds)
    _partners: Partners = field(default_factory=Partners)
    #: Jobs that are in a round (``stepped_training``).
    _in_round: set[str] = field(default_factory=set)
    _last_action: int = 0

    def apply(self, actions: Sequence[Action]) -> None:
        """Carries out actions, in order; their events follow in virtual time. A repeated action is ignored."""
        for action in actions:
            if 0 <= action.id <= self._last_action:
                continue
            self._last_action = max(self._last_action, action.id)
            if isinstance(action, StartJob):
                self._start(action)
                continue
            attempt = self._attempts.get(action.job)
            if attempt is None or attempt.attempt != action.attempt:
                continue
            if isinstance(action, ResizeJob):
                self._resize(attempt, action.placement)
            else:
                self._stop(attempt, _CAUSES[action.why])

    def inventory(self) -> Sequence[Running]:
        """Returns the attempts that are running."""
        return [Running(job=a.job, attempt=a.attempt, placement=a.placement) for a in self._attempts.values()]

    def adopt(self, state: SchedulerState) -> None:
        """Takes over everything that runs in ``state``, from the last reports of its jobs."""
        self._last_action = state.actions
        adopted: list[tuple[_Attempt, Action | None, float]] = []
        for job in state.jobs.values():
            if job.phase in HOLDING:
                action = job.in_flight
                placement = action.placement if isinstance(action, ResizeJob) else job.held
                attempt = _Attempt(job.id, job.attempt, job.spec, self._training(job.id, job.spec), placement)
                self._attempts[job.id] = attempt
                attempt.training.place(placement)
                if job.held != placement:
                    self._say_released(attempt)
                adopted.append((attempt, action, job.in_flight_since))
        for attempt, _, _ in adopted:  # only now everybody's neighbours are known
            self._meet(attempt, attempt.placement)
        for attempt, action, since in adopted:
            self._go_on(attempt, action, since)

    def _go_on(self, attempt: _Attempt, action: Action | None, since: float) -> None:
        """An adopted attempt trains, or brings the action under way to its end, begun when it was issued."""
        if action is None:
            self._run(attempt)
            return
        if isinstance(action, StopJob):
            duration_s, then = self.stop_s, partial(self._gone, attempt, _CAUSES[action.why])
        else:
            resized = isinstance(action, ResizeJob)
            before = action.before if isinstance(action, ResizeJob) else NOWHERE
            duration_s = self.change_cost(attempt.spec, before, attempt.placement)
            then = partial(self._begin, attempt, resized)
        self._schedule(attempt, max(since + duration_s, self.timeline.now()), then)

    # -- actions -----------------------------------------------------------------------------------

    def _start(self, action: StartJob) -> None:
        spec = self.spec_of(action.job)
        training = self._training(action.job, spec)
        attempt = _Attempt(action.job, action.attempt, spec, training, action.placement)
        self._attempts[action.job] = attempt
        training.place(action.placement)
        self._meet(attempt, action.placement)
        self._later(
            attempt, self.change_cost(spec, NOWHERE, action.placement), partial(self._begin, attempt, False)
        )

    def _resize(self, attempt: _Attempt, placement: Placement) -> None:
        if self.ready_s is None or not attempt.training_now:
            self._switch(attempt, placement)
            return
        attempt.change += 1
        change = attempt.change

        def ready() -> None:
            if attempt.change == change:
                self._switch(attempt, placement)

        seconds = self.ready_s(attempt.spec, attempt.placement, placement)
        self.timeline.at(self.timeline.now() + seconds, ready)

    def _switch(self, attempt: _Attempt, placement: Placement) -> None:
        before = attempt.placement
        cost = self.change_cost(attempt.spec, before, placement)
        self._halt(attempt)
        attempt.placement, attempt.crowded, attempt.beside = placement, NONE, NONE
        attempt.training.place(placement)
        self._meet(attempt, placement)
        self._say_released(attempt)
        self._later(attempt, cost, partial(self._begin, attempt, True))

    def _stop(self, attempt: _Attempt, cause: StopCause) -> None:
        self._halt(attempt, lost=cause == "node-lost")
        if self.stop_s:
            self._later(attempt, self.stop_s, partial(self._gone, attempt, cause))
        else:
            self._gone(attempt, cause)

    def _say_released(self, attempt: _Attempt) -> None:
        released = ReplicasReleased(job=attempt.job, attempt=attempt.attempt, placement=attempt.placement)
        self.timeline.deliver(released)

    # -- what follows --------------------------------------------------------------------------------

    def _begin(self, attempt: _Attempt, resized: bool) -> None:
        if resized:
            self.timeline.deliver(
                JobResized(job=attempt.job, attempt=attempt.attempt, placement=attempt.placement)
            )
        else:
            self.timeline.deliver(JobStarted(job=attempt.job, attempt=attempt.attempt))
        self._run(attempt)

    def _run(self, attempt: _Attempt) -> None:
        attempt.training_now = True
        attempt.training.resume(self.timeline.now())
        self._in_round.add(attempt.job)
        self._align(attempt)
        self._watch(attempt)

    def _gone(self, attempt: _Attempt, cause: StopCause) -> None:
        self._release(attempt)
        if cause == "cancelled":
            self._trainings.pop(attempt.job, None)
        self.timeline.deliver(JobStopped(job=attempt.job, attempt=attempt.attempt, cause=cause))

    def _progress(self, attempt: _Attempt) -> None:
        """Something happens in training: an epoch ends, a report is due, or the job is done."""
        measurement = attempt.training.advance(self.timeline.now())
        if measurement is not None:
            self.timeline.deliver(Measured(job=attempt.job, attempt=attempt.attempt, measurement=measurement))
        if attempt.training.finished:
            self._release(attempt)
            del self._trainings[attempt.job]
            self.timeline.deliver(JobFinished(job=attempt.job, attempt=attempt.attempt, outcome="succeeded"))
        elif attempt.training.waits:
            self._leave_round(attempt)
        else:
            self._watch(attempt)

    def _leave_round(self, attempt: _Attempt) -> None:
        """The attempt is through its round, or gone. When all are, the next round begins for those that wait.

        It begins before the decision of this instant: whoever is stopped by it has not trained yet.
        """
        self._in_round.discard(attempt.job)
        if self._in_round:
            return
        waiting = [other for other in self._attempts.values() if other.training.waits]
        for other in waiting:
            self._run(other)

    def _align(self, attempt: _Attempt) -> None:
        """Rounds of jobs on the same GPUs end together."""
        others = [self._attempts[name] for name in self._partners.of(attempt.job) if name in self._attempts]
        if not others:
            return
        together = [each for each in (attempt, *others) if each.training_now and not each.training.waits]
        end_at = max((each.training.next_at for each in together), default=inf)
        for each in together:
            each.training.hold_until(end_at)
            self._watch(each)

    def _watch(self, attempt: _Attempt) -> None:
        attempt.stage += 1
        if attempt.training.next_at < float("inf"):
            self._schedule(attempt, attempt.training.next_at, partial(self._progress, attempt))

    def _halt(self, attempt: _Attempt, *, lost: bool = False) -> None:
        attempt.stage += 1
        attempt.change += 1
        if attempt.training_now:
            attempt.training.pause(self.timeline.now(), lost=lost)
            attempt.training_now = False
            self._leave_round(attempt)

    def _release(self, attempt: _Attempt) -> None:
        attempt.stage += 1
        attempt.change += 1
        del self._attempts[attempt.job]
        self._meet(attempt, NOWHERE)
        self._leave_round(attempt)

    def _meet(self, attempt: _Attempt, placement: Placement) -> None:
        """The placement has changed: whoever shares a node or GPUs with it may go faster or slower."""
        if placement.shared or self._partners.knows(attempt.job):
            self._meet_on_gpus(attempt, placement)
        if not self.interference.possible:
            return
        for name in self._crowds.move(attempt.job, placement):
            other = self._attempts.get(name)
            if other is None:
                continue
            links = [Link(crowd, self.link_of(node)) for node, crowd in self._crowds.around(name)]
            other.crowded = self.interference.slowdown(links, other.training.measured_link)
            self._slow(other)

    def _meet_on_gpus(self, attempt: _Attempt, placement: Placement) -> None:
        for name in self._partners.move(attempt.job, placement):
            other = self._attempts.get(name)
            if other is not None:
                beside = [self._attempts[each].spec for each in self._partners.of(name)]
                other.beside = self.sharing.slowdown(other.spec, other.placement.gpu_type, beside)
                self._slow(other)
        self._align(attempt)

    def _slow(self, attempt: _Attempt) -> None:
        slowdown = joined(attempt.crowded, attempt.beside)
        attempt.training.slow(self.timeline.now(), slowdown)
        if attempt.training_now:
            self._watch(attempt)

    def _training(self, job: str, spec: JobSpec) -> Training:
        if job not in self._trainings:
            self._trainings[job] = self.train(job, spec)
        return self._trainings[job]

    def _later(self, attempt: _Attempt, seconds: float, then: Callable[[], None]) -> None:
        self._schedule(attempt, self.timeline.now() + seconds, then)

    def _schedule(self, attempt: _Attempt, at: float, then: Callable[[], None]) -> None:
        stage = attempt.stage

        def run() -> None:
            if attempt.stage == stage:
                then()

        self.timeline.at(at, run)


class Timeline:
    """Implements ``runtime.Feed`` in virtual time."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._heap: list[tuple[float, int, int, AnyEvent | Callable[[], None]]] = []
        self._ready: deque[AnyEvent] = deque()
        self._pushed = 0

    def now(self) -> float:
        """Returns the present virtual time."""
        return self._now

    def empty(self) -> bool:
        """True if nothing is scheduled any more."""
        return not self._heap and not self._ready

    def at(self, time: float, what: AnyEvent | Callable[[], None], priority: int = EXECUTOR) -> None:
        """Schedules an event to be delivered, or a callable to be run, at ``time``."""
        self._pushed += 1
        heapq.heappush(self._heap, (time, priority, self._pushed, what))

    def deliver(self, event: AnyEvent) -> None:
        """Delivers an event right now, after those already waiting."""
        self._ready.append(event)

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """Returns the next event not later than ``until``, with its time; None if there is none."""
        heap, ready = self._heap, self._ready
        while True:
            if ready:
                return self._now, ready.popleft()
            if not heap or (until is not None and heap[0][0] > until):
                if until is not None and until > self._now:
                    self._now = until
                return None
            time, _, _, what = heapq.heappop(heap)
            if time > self._now:  # what was due before the simulation began happens at its beginning
                self._now = time
            if callable(what):
                what()
            else:
                return self._now, what
