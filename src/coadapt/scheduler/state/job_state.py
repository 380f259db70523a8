"""The mutable state of one job inside the scheduler's state.

``JobService`` counts what the job was given (GPU-seconds, waiting, seconds of training), ``JobReports`` adds what its
agent reported and what is kept of it after its end, and ``JobState`` adds its phase, attempts and target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from coadapt.model import (
    NOWHERE,
    Configuration,
    Forecast,
    JobFinished,
    JobSpec,
    JobStopped,
    Measurement,
    Placement,
    Reason,
    StopJob,
    charged_gpus,
    gpus_of,
)
from coadapt.model.actions import Action, StopWhy
from coadapt.model.retry import Failure, Tries, failure_of, is_progress, is_quick, judged, killed
from coadapt.model.snapshot import HOLDING, Phase, ShownState, shown_state
from coadapt.prediction import gradient_noise, parameter_server
from coadapt.prediction.gradient_noise import NoiseTable
from coadapt.prediction.remaining.adaptive_run import Stretch, place
from coadapt.prediction.remaining.past_jobs import PastJob, past_job
from coadapt.prediction.remaining.work import declared_work
from coadapt.prediction.step_time import step_table
from coadapt.scheduler.state.transitions import next_phase
from coadapt.spec.target import stored_target

_NO_SERVICE: dict[str, float] = {}


class JobService:
    """Identity of a job, the GPUs it holds, and sums over time: service, waiting, training.

    Args:
        job: id of the job.
        spec: its specification.
        order: its number in order of submission.
        at: time of submission.
    """

    __slots__ = (
        "attained",
        "attained_of_type",
        "held",
        "held_charge",
        "held_gpus",
        "held_since",
        "id",
        "limit_from_s",
        "order",
        "ran_before_s",
        "running_since",
        "spec",
        "submitted_at",
        "waited_before_s",
    )

    def __init__(self, job: str, spec: JobSpec, order: int, at: float) -> None:
        self.id = job
        self.spec = spec
        self.order = order
        self.submitted_at = at
        #: What the processes hold; in a resize the union of old and new until the old is released.
        self.held: Placement = NOWHERE
        self.held_gpus = 0
        #: GPUs that it is charged for: shared ones by its share.
        self.held_charge = 0.0
        # sums up to ``held_since``, and up to the present stretch of training
        self.held_since = at
        self.attained = 0.0
        self.attained_of_type = _NO_SERVICE
        self.waited_before_s = 0.0
        self.ran_before_s = 0.0
        self.running_since: float | None = None
        #: Seconds it had trained when its time limit began to count: a retry has all of it again.
        self.limit_from_s = 0.0

    def attained_gpu_s(self, now: float) -> float:
        """GPU-seconds held so far."""
        return self.attained + self.held_charge * (now - self.held_since)

    def attained_by_type(self, now: float) -> Mapping[str, float]:
        """GPU-seconds held so far, by GPU type."""
        if not self.held_gpus:
            return self.attained_of_type
        kind = self.held.gpu_type
        grown = self.attained_of_type.get(kind, 0.0) + self.held_charge * (now - self.held_since)
        return {**self.attained_of_type, kind: grown}

    def waited_s(self, now: float) -> float:
        """Seconds since submission without GPUs."""
        return self.waited_before_s + (0.0 if self.held_gpus else now - self.held_since)

    def ran_s(self, now: float) -> float:
        """Seconds it trained, at whatever size, without those whose outcome was lost with a node."""
        return self.ran_before_s + (0.0 if self.running_since is None else now - self.running_since)

    @property
    def limit_at(self) -> float | None:
        """Returns when the time limit is reached if training continues; None without a limit, or while the job does not
        train.
        """
        if self.spec.time_limit_s is None or self.running_since is None:
            return None
        left_s = self.spec.time_limit_s - (self.ran_before_s - self.limit_from_s)
        return self.running_since + max(left_s, 0.0)

    def hold(self, placement: Placement, at: float) -> None:
        """From ``at`` on the job's processes hold ``placement``."""
        if self.held_gpus:
            self.attained_of_type = dict(self.attained_by_type(at))
            self.attained = self.attained_gpu_s(at)
        else:
            self.waited_before_s = self.waited_s(at)
        self.held_since = at
        self.held = placement
        self.held_gpus = gpus_of(placement, self.spec)
        self.held_charge = float(charged_gpus(placement, self.spec))

    def stop_running(self, at: float, *, lost: bool) -> None:
        """Ends the present stretch of training; with ``lost`` the progress since it began is lost."""
        if not lost:
            self.ran_before_s = self.ran_s(at)
        self.running_since = None


#: Points of a metric's course that are kept; beyond, every second one goes.
_MOST_COURSE = 256
#: Stretches between reports that are kept, and metrics.
_MOST_STRETCHES, _MOST_METRICS = 32, 64
_NO_METRICS: dict[str, float] = {}


class JobReports(JobService):
    """What the job's agent reported: tables for the predictors and the last values.

    ``job``, ``spec``, ``order`` and ``at`` as in ``JobService``.
    """

    __slots__ = (
        "config",
        "course",
        "epoch",
        "goodput",
        "grad_batch",
        "grad_sqr",
        "grad_var",
        "measured_at",
        "metrics",
        "noise",
        "progressed",
        "ran_reported_s",
        "reported_attempt",
        "server_table",
        "share",
        "share_of",
        "stretches",
        "table",
        "work",
    )

    def __init__(self, job: str, spec: JobSpec, order: int, at: float) -> None:
        super().__init__(job, spec, order, at)
        self.table = step_table.EMPTY_TABLE
        self.server_table = parameter_server.ServerTable(synchronous=spec.sync != "ps-async")
        self.grad_sqr: float | None = None
        self.grad_var: float | None = None
        #: The batch size at which they were measured.
        self.grad_batch: int | None = None
        self.noise = NoiseTable(initial_batch=float(spec.batch.initial if spec.batch is not None else 1))
        #: (work, metric) so far, of the metric that the target names.
        self.course: tuple[tuple[float, float], ...] = ()
        self.work: float | None = None
        self.epoch: float | None = None
        #: Share of the whole that it said was done, and of what: work, or seconds trained where it tells no work.
        self.share: float | None = None
        self.share_of = 0.0
        self.config: Configuration | None = None
        #: When ``work`` was last reported, and how long it had trained by then.
        self.measured_at: float | None = None
        self.ran_reported_s = 0.0
        #: The attempt that reported it.
        self.reported_attempt = 0
        #: Whether the present attempt has done anything at all.
        self.progressed = False
        #: Last values of its metrics.
        self.metrics = _NO_METRICS
        #: Work per second between the last two reports that lay in one place.
        self.goodput: float | None = None
        self.stretches: tuple[Stretch, ...] = ()

    def measure(self, measurement: Measurement, attempt: int, at: float) -> None:
        """Adds the report of an agent."""
        m = measurement
        if m.config.servers:
            self.server_table = parameter_server.observe(self.server_table, m)
        elif m.step_s > 0:
            self.table = step_table.observe(self.table, m)
        if m.grad_sqr is not None:
            self.grad_sqr, self.grad_var = m.grad_sqr, m.grad_var
            self.grad_batch = m.config.batch
            self.noise = gradient_noise.observe(self.noise, m)
        if m.metrics:
            self._note_metrics(m)
        self.progressed = self.progressed or is_progress(m, self.work)
        if m.work is not None:
            self._note_work(m.work, m.config, attempt, at)
        if m.epoch is not None:
            self.epoch = m.epoch
        if m.share is not None:
            self.share, self.share_of = m.share, self.ran_s(at) if self.work is None else self.work
        self.config = m.config

    def forget_measurements(self) -> None:
        """Drops the tables that predictors use; work and metrics stay."""
        fresh = JobReports(self.id, self.spec, self.order, self.submitted_at)
        for name in ("table", "server_table", "grad_sqr", "grad_var", "grad_batch", "noise"):
            setattr(self, name, getattr(fresh, name))
        self.course, self.stretches, self.goodput, self.share, self.share_of = (), (), None, None, 0.0

    def _note_metrics(self, m: Measurement) -> None:
        known = {**self.metrics, **{name: v for name, v in m.metrics.items() if math.isfinite(v)}}
        self.metrics = dict(list(known.items())[-_MOST_METRICS:])
        if self.spec.target is not None and m.work is not None:
            self._follow(m.work, m.metrics)

    def _note_work(self, work: float, config: Configuration, attempt: int, at: float) -> None:
        """Work so far; with the report before, if on the same GPUs, it tells how fast it goes."""
        ran_s, before = self.ran_s(at), self.config
        seconds, done = ran_s - self.ran_reported_s, work - (self.work or 0.0)
        same = attempt == self.reported_attempt and before is not None and place(before) == place(config)
        if same and self.work is not None and seconds > 0 and done > 0:
            stretch = Stretch(config=config, done=done, around=work - done / 2, seconds=seconds)
            self.stretches = (*self.stretches[-(_MOST_STRETCHES - 1) :], stretch)
            self.goodput = done / seconds
        self.work, self.measured_at = work, at
        self.ran_reported_s, self.reported_attempt = ran_s, attempt

    def _follow(self, work: float, metrics: Mapping[str, float]) -> None:
        """The target's metric, as far as it is a number and work has gone on."""
        target = stored_target(self.spec.target or "")
        value = None if target is None else metrics.get(target.name)
        if value is None or not math.isfinite(value) or (self.course and work <= self.course[-1][0]):
            return
        course = self.course if len(self.course) < _MOST_COURSE else self.course[::2]
        self.course = (*course, (work, value))

    @property
    def declared(self) -> float | None:
        """Work that the user declared; seconds for a job without a model."""
        if self.spec.batch is None:
            return self.spec.duration_s
        return declared_work(epochs=self.spec.epochs, data_size=self.spec.data_size)

    @property
    def told(self) -> float | None:
        """Returns the total work that the job itself announced, in the unit of ``declared``; None if it did not."""
        if self.spec.batch is not None and self.work is None:
            return None  # the share is of seconds then
        return self.share_of / self.share if self.share and self.share_of > 0 else None

    @property
    def teaches(self) -> bool:
        """Whether jobs like it can learn from it: one without a model whose length was declared teaches nothing."""
        return self.spec.batch is not None or self.spec.duration_s is None

    def past(self, at: float, *, change_cost_s: float | None, changes: int) -> PastJob:
        """Returns the record of the job for the pool, after it has succeeded."""
        total = self.ran_s(at) if self.spec.batch is None else self._total_work(at)
        course = (
            [(math.exp(point[0]) / total, math.exp(point[1])) for point in self.noise.points] if total else []
        )
        return past_job(
            self.spec,
            finished_at=at,
            table=self.table,
            noise=tuple((min(share, 1.0), phi) for share, phi in course),
            total_work=total,
            declared_work=self.declared,
            change_cost_s=change_cost_s,
            changes=changes,
        )

    def _total_work(self, at: float) -> float | None:
        """Work at its end: as declared, where it came near that by its speed up to the last report; else by that speed."""
        done, declared = self.work or 0.0, self.declared
        if not done or not self.ran_reported_s:
            return declared if declared is not None else self.work
        total = done * max(self.ran_s(at) / self.ran_reported_s, 1.0)
        if declared is not None and done <= declared and 0.8 * declared <= total <= 1.25 * declared:
            return declared
        return total


class JobState(JobReports):
    """Implements ``model.snapshot.JobView``; changed only by ``SchedulerState``.

    ``job``, ``spec``, ``order`` and ``at`` as in ``JobService``.
    """

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
        "missing_code",
        "on_hold",
        "phase",
        "quarantine",
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
        #: Why it is left out of decisions until it is released; None: it is not.
        self.quarantine: str | None = None
        #: Whether its frozen code is not in this home, so that it cannot start.
        self.missing_code = False
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
        """Records that an action was sent to the executor."""
        self.stop_running(at, lost=isinstance(action, StopJob) and action.why == "node-lost")
        self.phase = next_phase(self.phase, type(action).__name__, self.id)
        self.in_flight, self.in_flight_since = action, at
        if isinstance(action, StopJob):
            self.stop_why = action.why

    def begin_attempt(self, attempt: int) -> None:
        """Begins a new attempt, for which a start was issued."""
        self.attempt, self.attempt_started_at, self.progressed = attempt, None, False
        self.stop_why, self.resized_from, self.lost_to = None, 0, ()

    def confirm_change(self, what: str, at: float) -> None:
        """Records that the start or resize under way is done; its cost enters the mean."""
        self.phase = next_phase(self.phase, what, self.id)
        # the mean is over changes that came to their end: one that was stopped midway tells no cost
        self.confirmed += 1
        mean = self.change_cost_s or 0.0
        self.change_cost_s = mean + (at - self.in_flight_since - mean) / self.confirmed
        self.in_flight, self.running_since = None, at
        if self.attempt_started_at is None:
            self.attempt_started_at = at

    def end_of(self, ended_at: float | None, now: float) -> float:
        """Returns the time up to which its attempt counts: ``ended_at`` by another clock, not before what is known of it."""
        if ended_at is None:
            return now
        known = max(self.held_since, self.in_flight_since, self.running_since or 0.0)
        return min(max(ended_at, known), now)

    def note_setup(self, setup_s: float) -> None:
        """Adds the time that the processes of the last change needed before their first step to the cost of the change."""
        if self.confirmed and self.change_cost_s is not None:
            self.change_cost_s += setup_s / self.confirmed

    def end_attempt(self, event: JobFinished | JobStopped, at: float) -> None:
        """Handles the end of the last process: the job pauses, retries or ends."""
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
        """Ends the job, and drops what only a job that may run again needs."""
        self.finished_at = at
        self.on_hold, self.retry_at, self.stopped_for, self.quarantine = False, None, None, None
        self.missing_code = False
        self.stretches = ()

    def revive(self, at: float) -> None:
        """Makes the job runnable again after its end, with its retries and time limit reset."""
        self.phase = next_phase(self.phase, "RetryRequested", self.id) if self.attempt else Phase.PENDING
        self.finished_at, self.cancelling = None, False
        self.tries, self.limit_from_s = Tries(), self.ran_s(at)

    def leave_quarantine(self) -> None:
        """Lets the job take part in decisions again, as one that was never measured."""
        self.quarantine = None
        self.forget_measurements()

    def as_past(self, at: float) -> PastJob:
        """Returns the record of the job for the pool, after it has succeeded."""
        return self.past(at, change_cost_s=self.change_cost_s, changes=self.changes)

    @property
    def free_to_run(self) -> bool:
        """Whether the job itself may run: not ended, cancelled, on hold, backing off or in a failing attempt."""
        held_back = (
            self.cancelling
            or self.on_hold
            or self.quarantine is not None
            or self.missing_code
            or self.retry_at is not None
            or self.stopped_for is not None
        )
        return self.finished_at is None and not held_back

    @property
    def shown_state(self) -> ShownState:
        """The state that users see."""
        failed = self.failure is not None and self.failure.attempt == self.attempt
        return shown_state(
            self.phase,
            on_hold=self.on_hold,
            ended_itself=failed or self.stop_why == "cancel",
            quarantined=self.quarantine is not None,
        )

    @property
    def holding(self) -> bool:
        """Whether the job has processes."""
        return self.phase in HOLDING
