"""The history of a cluster: one pass over its log, into one life per job and a few series over time.

``History.add`` takes a record as it is appended (``Loop(on_record=history.add)``), so that a long
simulation is reported without its log being kept; ``History.of`` takes a log from a store. The fold
follows the scheduler's rules for when a job holds GPUs (``scheduler.state.state``): from the action that
starts it until its last process is gone. With ``detail=False`` a job keeps its sums only, not its
stays and reports: enough for every number and every chart over time, not for one job's life.

The fold has three parts: sums over time (nodes that join and leave, GPUs that jobs hold and their value), what
users ask for (submissions, dependencies, cancellations, retries, changes) and how jobs end, and ``History`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    CancelRequested,
    ClusterRestored,
    ControllerStarted,
    DecisionMade,
    JobFinished,
    JobHung,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    Placement,
    Record,
    ReplicasReleased,
    ReportsMerged,
    ResizeJob,
    RetryRequested,
    SpecChanged,
    StartJob,
    charged_gpus,
    union,
)
from coadapt.model.events import Outcome
from coadapt.model.retry import (
    Failure,
    Tries,
    failure_of,
    hung,
    is_progress,
    is_quick,
    judged,
    killed,
    over_time,
)
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.report.job_history import JobHistory, Progress, Stay
from coadapt.report.series import StepSeries


class HeldOverTime:
    """Series over the cluster, and sums by job; ``_hold`` is told every change of a job."""

    def __init__(self, *, detail: bool = True) -> None:
        self.detail = detail
        self.began_at: float | None = None
        self.now = 0.0
        self.policy = ""
        self.decisions = 0
        self.jobs: dict[str, JobHistory] = {}
        #: Every node that ever joined, as it last did, and GPUs of those that take replicas.
        self.nodes: dict[str, Node] = {}
        self.gpus = 0
        self._up: dict[str, int] = {}
        #: Nodes that take no replicas, there or not.
        self._drained: set[str] = set()
        #: (time, GPUs from then on), one for each moment at which nodes came or went.
        self.gpu_steps: list[tuple[float, int]] = []
        self.first_submitted_at: float | None = None
        self.last_ended_at: float | None = None
        #: GPU-seconds held, and available, between the two.
        self.span_held_gpu_s = 0.0
        self.span_available_gpu_s = 0.0
        self._available_before = 0.0
        self.held = StepSeries()
        self.changing = StepSeries()
        #: GPUs of nodes that take replicas; more where leaving nodes or shared GPUs are still held.
        self.available = StepSeries()
        #: Jobs that may run, and those of them without GPUs.
        self.active = StepSeries()
        self.queued = StepSeries()
        #: GPUs whose statistical efficiency is known, and the same times the efficiency.
        self.rated = StepSeries()
        self.useful = StepSeries()
        self._blocked: dict[str, set[str]] = {}
        self._dependents: dict[str, list[str]] = {}

    def _begin(self, at: float) -> None:
        self.began_at = at
        for series in self._series():
            series.start(at)

    def _series(self) -> tuple[StepSeries, ...]:
        return self.held, self.changing, self.available, self.active, self.queued, self.rated, self.useful

    def _node_joined(self, event: NodeJoined) -> None:
        self.nodes[event.node.name] = event.node
        self._up[event.node.name] = event.node.gpus
        self._set_gpus()

    def _node_left(self, event: NodeLost | NodeDrained) -> None:
        if isinstance(event, NodeLost):
            self._up.pop(event.node, None)
        elif event.node in self.nodes:
            self._drained.add(event.node)
        self._set_gpus()

    def _node_opened(self, event: NodeOpened) -> None:
        self._drained.discard(event.node)
        self._set_gpus()

    def _set_gpus(self) -> None:
        self.gpus = sum(gpus for node, gpus in self._up.items() if node not in self._drained)
        if self.gpu_steps and self.gpu_steps[-1][0] == self.now:
            self.gpu_steps.pop()
        self.gpu_steps.append((self.now, self.gpus))
        self.available.set(self.now, max(self.gpus, self.held.value))

    def _note_span(self) -> None:
        self.last_ended_at = self.now
        self.held.advance(self.now)
        self.available.advance(self.now)
        self.span_held_gpu_s = self.held.total
        self.span_available_gpu_s = self.available.total - self._available_before

    def _hold(self, job: JobHistory, placement: Placement, phase: Phase) -> None:
        """From now on the job holds ``placement`` and is in ``phase``; what was until now is summed up."""
        now = self.now
        before, was = job.gpus, job.phase
        if now > job.since:
            self._sum_up(job, now)
            job.since = now
        if placement is not job.held:
            job.held, job.gpus = placement, charged_gpus(placement, job.spec)
        job.phase = phase
        after = job.gpus
        if before != after:
            held = self.held.value + after - before
            self.held.set(now, held)
            if max(self.gpus, held) != self.available.value:
                self.available.set(now, max(self.gpus, held))
            if not before or not after:
                self.queued.set(now, self.queued.value + (1 if before else -1))
        lost_before = before if was is not Phase.RUNNING else 0
        lost_after = after if phase is not Phase.RUNNING else 0
        if lost_before != lost_after:
            self.changing.set(now, self.changing.value + lost_after - lost_before)

    def _sum_up(self, job: JobHistory, now: float) -> None:
        took = now - job.since
        if not job.gpus:
            job.waited_s += took
            return
        training = job.phase is Phase.RUNNING
        job.held_gpu_s += job.gpus * took
        if not training:
            job.changing_gpu_s += job.gpus * took
        elif job.efficiency is not None:
            self._rate(job, now)
        else:  # waits for the first report
            job.unrated_since = job.unrated_since if job.unrated_gpu_s else job.since
            job.unrated_gpu_s += job.gpus * took
        if self.detail:
            start, stays = job.since, job.stays
            last = stays[-1] if stays else None
            if last and last.end == start and last.training == training and last.placement is job.held:
                start = stays.pop().start
            stays.append(Stay(start, now, job.gpus, training, job.held))

    def _rate(self, job: JobHistory, now: float) -> None:
        """Gives the training since the last report the efficiency now known."""
        since = max(job.since, job.rated_until)
        gpu_s = job.gpus * (now - since)
        if job.unrated_gpu_s:
            since, gpu_s = job.unrated_since, gpu_s + job.unrated_gpu_s
            job.unrated_gpu_s = 0.0
        job.rated_until = now
        if job.efficiency is None or now <= since:
            return
        job.rated_gpu_s += gpu_s
        job.useful_gpu_s += gpu_s * job.efficiency
        mean = gpu_s / (now - since)
        self.rated.add(since, now, mean)
        self.useful.add(since, now, mean * job.efficiency)


_ENDED_AS: dict[Outcome, Phase] = {
    "succeeded": Phase.SUCCEEDED,
    "failed": Phase.FAILED,
    "cancelled": Phase.CANCELLED,
}


class AskedFor(HeldOverTime):
    """Which jobs may run: ``active`` and ``queued`` over time."""

    def _submitted(self, event: JobSubmitted) -> None:
        if event.job in self.jobs:
            return
        if self.first_submitted_at is None:
            self.first_submitted_at = self.now
            self.available.advance(self.now)
            self._available_before = self.available.total
        job = JobHistory(event.job, event.spec, self.now, since=self.now)
        self.jobs[event.job] = job
        unmet = self._unmet(job)
        if self._doomed(unmet):
            self._end(job, "cancelled")
        else:
            self._await(job, unmet)

    def _unmet(self, job: JobHistory) -> set[str]:
        return {name for name in job.spec.after if not self._has(name, Phase.SUCCEEDED)}

    def _doomed(self, unmet: set[str]) -> bool:
        return any(name in self.jobs and self.jobs[name].ended_at is not None for name in unmet)

    def _await(self, job: JobHistory, unmet: set[str]) -> None:
        if unmet:
            self._blocked[job.id] = unmet
            for name in unmet:
                self._dependents.setdefault(name, []).append(job.id)
        else:
            self._ready(job)

    def _has(self, name: str, phase: Phase) -> bool:
        return name in self.jobs and self.jobs[name].phase is phase

    def _ready(self, job: JobHistory) -> None:
        job.ready_at = self.now
        self.active.set(self.now, self.active.value + 1)
        self.queued.set(self.now, self.queued.value + 1)

    def _cancelled(self, event: CancelRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.ended_at is not None:
            return
        job.cancelling = True
        if job.phase not in HOLDING:
            self._end(job, "cancelled")

    def _retried(self, event: RetryRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.outcome not in ("failed", "cancelled"):
            return
        unmet = self._unmet(job)
        if not self._doomed(unmet):
            self._revive(job, unmet)

    def _revive(self, job: JobHistory, unmet: set[str]) -> None:
        """A job that had ended has not; the time between counts for nothing."""
        job.phase = Phase.PAUSED if job.attempt else Phase.PENDING
        job.ended_at, job.outcome, job.ready_at = None, None, None
        job.cancelling, job.tries, job.since = False, Tries(), self.now
        self._await(job, unmet)

    def _spec_changed(self, event: SpecChanged) -> None:
        job = self.jobs.get(event.job)
        if job is not None and job.ended_at is None and job.spec.roles == event.spec.roles:
            job.spec = event.spec

    def _end(self, job: JobHistory, outcome: Outcome) -> None:
        self._hold(job, NOWHERE, _ENDED_AS[outcome])
        job.ended_at, job.outcome = self.now, outcome
        if job.ready_at is not None:
            self.active.set(self.now, self.active.value - 1)
            self.queued.set(self.now, self.queued.value - 1)
        self._blocked.pop(job.id, None)
        self._note_span()
        for name in self._dependents.pop(job.id, ()):
            unmet = self._blocked.get(name)
            if unmet is None:
                continue
            unmet.discard(job.id)
            if outcome != "succeeded":
                self._end(self.jobs[name], "cancelled")
            elif not unmet:
                del self._blocked[name]
                self._ready(self.jobs[name])


class History(AskedFor):
    """The reduced history of a cluster. Call ``settle`` before reading it."""

    @classmethod
    def of(cls, records: Iterable[Record], *, detail: bool = True) -> History:
        """The history of a whole log."""
        history = cls(detail=detail)
        for record in records:
            history.add(record)
        return history.settle()

    def add(self, record: Record) -> None:
        """Folds one record; costs in proportion to what it changes."""
        if self.began_at is None:
            self._begin(record.at)
        self.now = record.at
        fold = _FOLD.get(type(record.event))
        if fold is not None:
            fold(self, record.event)

    def settle(self) -> History:
        """Brings all sums up to now; may be called at any time, and repeatedly."""
        for job in self.jobs.values():
            if job.ended_at is None:
                self._hold(job, job.held, job.phase)
        for series in self._series():
            series.advance(self.now)
        return self

    def _issued(self, event: ActionsIssued) -> None:
        for action in event.actions:
            job = self.jobs[action.job]
            if isinstance(action, StartJob):
                if job.ended_at is not None:
                    self._revive(job, set())  # an older coadapt tried it again where we would not
                job.attempt, job.attempt_started_at, job.progressed = action.attempt, None, False
                self._change(job, action.placement, Phase.STARTING)
            elif isinstance(action, ResizeJob):
                self._change(job, union(action.before, action.placement), Phase.RESIZING)
            else:
                if action.why == "time-limit":
                    job.stopped_for = over_time(action.attempt, job.spec.time_limit_s or 0.0, self.now)
                self._hold(job, job.held, Phase.STOPPING)

    def _change(self, job: JobHistory, placement: Placement, phase: Phase) -> None:
        job.changes += 1
        if job.started_at is None:
            job.started_at = self.now
        self._hold(job, placement, phase)

    def _started(self, event: JobStarted) -> None:
        job = self._current(event.job, event.attempt)
        if job is not None and job.phase is Phase.STARTING:
            job.attempt_started_at = self.now
            self._hold(job, job.held, Phase.RUNNING)

    def _released(self, event: ReplicasReleased) -> None:
        job = self._current(event.job, event.attempt)
        if job is not None and job.phase is Phase.RESIZING:
            self._hold(job, event.placement, job.phase)

    def _resized(self, event: JobResized) -> None:
        job = self._current(event.job, event.attempt)
        if job is not None and job.phase is Phase.RESIZING:
            self._hold(job, event.placement, Phase.RUNNING)

    def _hung(self, event: JobHung) -> None:
        job = self._current(event.job, event.attempt)
        if job is None or job.phase is Phase.STOPPING or job.cancelling or job.stopped_for is not None:
            return
        job.stopped_for = hung(event, self.now)

    def _stopped(self, event: JobStopped) -> None:
        job = self._current(event.job, event.attempt)
        if job is None:
            return
        failure = failure_of(event, job.stopped_for, self.now)
        asked_for, job.stopped_for = job.phase is Phase.STOPPING, None
        if job.cancelling:
            self._end(job, "cancelled")
            return
        if failure is None and event.cause == "preempted" and not asked_for:
            job.tries, failure = killed(job.tries, event.attempt, self.now)
        if failure is not None:
            self._failed(job, failure)
        else:
            self._hold(job, NOWHERE, Phase.PAUSED)

    def _restored(self, event: ClusterRestored) -> None:
        """Nothing that ran where the backup was made runs here."""
        for job in self.jobs.values():
            if job.phase in HOLDING:
                self._stopped(JobStopped(job=job.id, attempt=job.attempt, cause="restored"))
        for node in list(self.nodes):
            self._node_left(NodeLost(node=node))

    def _finished(self, event: JobFinished) -> None:
        job = self._current(event.job, event.attempt)
        if job is None:
            return
        failure, job.stopped_for = failure_of(event, job.stopped_for, self.now), None
        if failure is None:
            self._end(job, event.outcome)
        elif job.cancelling:
            self._end(job, "cancelled")
        else:
            self._failed(job, failure)

    def _failed(self, job: JobHistory, failure: Failure) -> None:
        """As the scheduler judges it."""
        quick = is_quick(job.attempt_started_at, job.progressed, self.now)
        job.tries, _, retry_at = judged(job.tries, failure, retries=job.spec.retries, quick=quick)
        if retry_at is None:
            self._end(job, "failed")
        else:
            self._hold(job, NOWHERE, Phase.PAUSED)

    def _current(self, name: str, attempt: int) -> JobHistory | None:
        """The job, if this attempt is its newest and still there; None for a stale report."""
        job = self.jobs.get(name)
        return job if job is not None and job.attempt == attempt and job.phase in HOLDING else None

    def _measured(self, event: Measured | ReportsMerged) -> None:
        job = self._current(event.job, event.attempt)
        if job is None:
            return
        batch = job.measure(event.measurement)
        job.progressed = job.progressed or is_progress(event.measurement, job.work)
        job.work = job.work if event.measurement.work is None else event.measurement.work
        # a report speaks of the time before it
        if job.phase is Phase.RUNNING and job.efficiency is not None:
            self._rate(job, self.now)
        if self.detail:
            job.progress.append(Progress(self.now, batch, job.efficiency, event.measurement.epoch))

    def _decided(self, event: DecisionMade) -> None:
        self.decisions += 1
        for name, reason in event.reasons.items():
            job = self.jobs[name]
            job.reason = reason
            if self.detail:
                job.reasons.append((self.now, reason))

    def _controller(self, event: ControllerStarted) -> None:
        self.policy = event.policy or self.policy


_FOLD: dict[type, Callable[[History, Any], None]] = {
    ControllerStarted: History._controller,
    NodeJoined: History._node_joined,
    NodeLost: History._node_left,
    NodeDrained: History._node_left,
    NodeOpened: History._node_opened,
    JobSubmitted: History._submitted,
    CancelRequested: History._cancelled,
    RetryRequested: History._retried,
    SpecChanged: History._spec_changed,
    JobStarted: History._started,
    ReplicasReleased: History._released,
    JobResized: History._resized,
    JobHung: History._hung,
    JobStopped: History._stopped,
    JobFinished: History._finished,
    Measured: History._measured,
    ReportsMerged: History._measured,
    ClusterRestored: History._restored,
    DecisionMade: History._decided,
    ActionsIssued: History._issued,
}
