"""The mutable life of one job inside the scheduler's state."""

from __future__ import annotations

from coadapt.model import (
    NOWHERE,
    Forecast,
    JobFinished,
    JobSpec,
    JobStopped,
    Placement,
    Reason,
    StopJob,
)
from coadapt.model.actions import Action, StopWhy
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.model.tries import Failure, Tries, failure_of, is_quick, judged, killed
from coadapt.predict.history import PastJob
from coadapt.scheduler.job_reports import JobReports
from coadapt.scheduler.transitions import next_phase


class JobState(JobReports):
    """Implements ``model.snapshot.JobView``; changed only by ``SchedulerState``."""

    __slots__ = (
        "attempt",
        "attempt_started_at",
        "cancelling",
        "change_cost_s",
        "changed_at",
        "changes",
        "confirmed",
        "failure",
        "finished_at",
        "first_forecast",
        "first_forecast_at",
        "forecast",
        "forecast_at",
        "in_flight",
        "in_flight_since",
        "lost_to",
        "on_hold",
        "phase",
        "reason",
        "reason_at",
        "reason_decision",
        "resized_from",
        "retry_at",
        "started_at",
        "stop_why",
        "stopped_for",
        "target",
        "target_gpus",
        "tries",
    )

    def __init__(self, job: str, spec: JobSpec, order: int, at: float) -> None:
        super().__init__(job, spec, order, at)
        self.phase = Phase.PENDING
        #: Number of starts; reports that carry another one are stale.
        self.attempt = 0
        #: When all replicas of the present attempt were training for the first time.
        self.attempt_started_at: float | None = None
        self.target: Placement = NOWHERE
        self.target_gpus = 0
        #: The action issued and not yet confirmed.
        self.in_flight: Action | None = None
        self.in_flight_since = 0.0
        self.started_at: float | None = None
        self.changed_at: float | None = None
        self.finished_at: float | None = None
        self.changes = 0
        self.change_cost_s: float | None = None
        #: Changes that came to their end.
        self.confirmed = 0
        self.cancelling = False
        #: The user paused it.
        self.on_hold = False
        #: After a failure: it may not run before.
        self.retry_at: float | None = None
        self.tries = Tries()
        #: The failure that the present attempt is being stopped for, and the last one that came to its end.
        self.stopped_for: Failure | None = None
        self.failure: Failure | None = None
        #: Why its last attempt was stopped by us; None: it was not.
        self.stop_why: StopWhy | None = None
        #: Who got GPUs, and how many, by the decision that took those of its last attempt; the largest.
        self.lost_to: tuple[tuple[str, int], ...] = ()
        #: GPUs before the last resize of the present attempt; 0: it was not resized.
        self.resized_from = 0
        self.reason: Reason | None = None
        self.reason_at: float | None = None
        self.reason_decision: int | None = None
        #: What the policy last and first expected of it.
        self.forecast: Forecast | None = None
        self.forecast_at: float | None = None
        self.first_forecast: Forecast | None = None
        self.first_forecast_at: float | None = None

    def issue(self, action: Action, at: float) -> None:
        """An action of ours was sent."""
        self.stop_running(at, lost=isinstance(action, StopJob) and action.why == "node-lost")
        self.phase = next_phase(self.phase, type(action).__name__, self.id)
        self.in_flight, self.in_flight_since = action, at
        if isinstance(action, StopJob):
            self.stop_why = action.why

    def begin_attempt(self, attempt: int) -> None:
        """A start was issued."""
        self.attempt, self.attempt_started_at, self.progressed = attempt, None, False
        self.stop_why, self.resized_from, self.lost_to = None, 0, ()

    def confirm_change(self, what: str, at: float) -> None:
        """The start or resize that was under way is done; its cost enters the mean."""
        self.phase = next_phase(self.phase, what, self.id)
        # the mean is over changes that came to their end: one that was stopped midway tells no cost
        self.confirmed += 1
        mean = self.change_cost_s or 0.0
        self.change_cost_s = mean + (at - self.in_flight_since - mean) / self.confirmed
        self.in_flight, self.running_since = None, at
        if self.attempt_started_at is None:
            self.attempt_started_at = at

    def note_setup(self, setup_s: float) -> None:
        """The processes of its last change needed so long before their first step: that belongs to what the change cost."""
        if self.confirmed and self.change_cost_s is not None:
            self.change_cost_s += setup_s / self.confirmed

    def end_attempt(self, event: JobFinished | JobStopped, at: float) -> None:
        """The last process is gone: the job pauses, retries or ends."""
        asked_for = self.phase is Phase.STOPPING
        phase = next_phase(self.phase, type(event).__name__, self.id)
        lost = isinstance(event, JobStopped) and event.cause in ("node-lost", "lost")
        self.stop_running(at, lost=lost)
        self.in_flight = None
        failure = failure_of(event, self.stopped_for, at)
        self.stopped_for = None
        if isinstance(event, JobFinished) and failure is None:
            phase = Phase(event.outcome.upper())
        elif self.cancelling:
            phase = Phase.CANCELLED  # even if it did not take the stop well
        else:
            if failure is None and not asked_for and isinstance(event, JobStopped):
                failure = self._killed(event, at)
            if failure is not None:
                phase = self._failed(failure)
        self.phase = phase

    def _killed(self, event: JobStopped, at: float) -> Failure | None:
        if event.cause != "preempted":
            return None
        self.tries, failure = killed(self.tries, event.attempt, at)
        return failure

    def _failed(self, failure: Failure) -> Phase:
        quick = is_quick(self.attempt_started_at, self.progressed, failure.at)
        self.tries, self.failure, self.retry_at = judged(
            self.tries, failure, retries=self.spec.retries, quick=quick
        )
        return Phase.FAILED if self.retry_at is None else Phase.PAUSED

    def end(self, at: float) -> None:
        """It has ended: what only a job that may run again needs is put away."""
        self.finished_at = at
        self.on_hold, self.retry_at, self.stopped_for = False, None, None
        self.stretches = ()

    def revive(self, at: float) -> None:
        """It shall run again after its end, with all its tries and all its time before it."""
        self.phase = next_phase(self.phase, "RetryRequested", self.id) if self.attempt else Phase.PENDING
        self.finished_at, self.cancelling = None, False
        self.tries, self.limit_from_s = Tries(), self.ran_s(at)

    def as_past(self, at: float) -> PastJob:
        """What is worth knowing of the job now that it has succeeded."""
        return self.past(at, change_cost_s=self.change_cost_s, changes=self.changes)

    @property
    def free_to_run(self) -> bool:
        """Nothing of its own speaks against its running: no end, cancel, hold, back-off or failing attempt."""
        held_back = (
            self.cancelling or self.on_hold or self.retry_at is not None or self.stopped_for is not None
        )
        return self.finished_at is None and not held_back

    @property
    def holding(self) -> bool:
        """Whether its processes are there."""
        return self.phase in HOLDING
