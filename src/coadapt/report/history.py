"""The history of a cluster: one pass over its log, into one life per job and a few series over time.

``History.add`` takes a record as it is appended (``Loop(on_record=history.add)``), so that a long
simulation is reported without its log being kept; ``History.of`` takes a log from a store. The fold
follows the scheduler's rules for when a job holds GPUs (``scheduler.state``): from the action that
starts it until its last process is gone. With ``detail=False`` a job keeps its sums only, not its
stays and reports: enough for every number and every chart over time, not for one job's life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    CancelRequested,
    ControllerStarted,
    DecisionMade,
    JobFinished,
    JobHung,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    Placement,
    Record,
    ReplicasReleased,
    ResizeJob,
    RetryRequested,
    SpecChanged,
    StartJob,
    union,
)
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.model.tries import (
    Failure,
    failure_of,
    hung,
    is_progress,
    is_quick,
    judged,
    killed,
    over_time,
)
from coadapt.report._asked_for import AskedFor
from coadapt.report.lives import JobHistory, Progress


class History(AskedFor):
    """What happened, reduced. Read it after ``settle``."""

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
        """Brings all sums up to now; may be called at any time, and again."""
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

    def _measured(self, event: Measured) -> None:
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
    DecisionMade: History._decided,
    ActionsIssued: History._issued,
}
