"""The mutable life of one job inside the scheduler's state."""

from __future__ import annotations

import math
from collections.abc import Mapping

from coadapt.model import (
    NOWHERE,
    Configuration,
    JobFinished,
    JobSpec,
    JobStopped,
    Measurement,
    Placement,
    Reason,
    StopJob,
    gpus_of,
)
from coadapt.model.actions import Action
from coadapt.model.snapshot import Phase
from coadapt.predict import noise, parameter_server, step_time
from coadapt.predict.history import PastJob, past_job
from coadapt.predict.noise import NoiseTable
from coadapt.predict.remaining import declared_work, parse_target
from coadapt.scheduler.transitions import next_phase

_NO_SERVICE: dict[str, float] = {}
#: Points of a metric's course that are kept; beyond, every second one goes.
_MOST_COURSE = 256


class JobState:
    """Implements ``model.snapshot.JobView``; changed only by ``SchedulerState``."""

    __slots__ = (
        "_attained",
        "_attained_by_type",
        "_confirmed",
        "_held_since",
        "_ran_reported_s",
        "_ran_s",
        "_running_since",
        "_waited",
        "attempt",
        "cancelling",
        "change_cost_s",
        "changed_at",
        "changes",
        "config",
        "course",
        "epoch",
        "failures",
        "finished_at",
        "grad_batch",
        "grad_sqr",
        "grad_var",
        "held",
        "held_gpus",
        "id",
        "in_flight",
        "in_flight_since",
        "measured_at",
        "noise",
        "order",
        "phase",
        "reason",
        "server_table",
        "spec",
        "started_at",
        "submitted_at",
        "table",
        "target",
        "target_gpus",
        "work",
    )

    def __init__(self, job: str, spec: JobSpec, order: int, at: float) -> None:
        self.id = job
        self.spec = spec
        self.order = order
        self.submitted_at = at
        self.phase = Phase.PENDING
        #: Number of starts; reports that carry another one are stale.
        self.attempt = 0
        self.target: Placement = NOWHERE
        self.target_gpus = 0
        #: What the processes hold; in a resize the union of old and new until the old is released.
        self.held: Placement = NOWHERE
        self.held_gpus = 0
        #: The action issued and not yet confirmed.
        self.in_flight: Action | None = None
        self.in_flight_since = 0.0
        self.started_at: float | None = None
        self.changed_at: float | None = None
        self.finished_at: float | None = None
        self.changes = 0
        self.change_cost_s: float | None = None
        self.failures = 0
        self.cancelling = False
        self.reason: Reason | None = None
        #: Seconds it had trained when it last reported its work.
        self._ran_reported_s = 0.0
        # what measurements say
        self.table = step_time.EMPTY_TABLE
        self.server_table = parameter_server.ServerTable(synchronous=spec.sync != "ps-async")
        self.grad_sqr: float | None = None
        self.grad_var: float | None = None
        #: The batch size at which they were measured.
        self.grad_batch: int | None = None
        self.noise = NoiseTable(initial_batch=spec.batch.initial if spec.batch is not None else 1)
        #: (work, metric) so far, of the metric that the target names.
        self.course: tuple[tuple[float, float], ...] = ()
        self.work: float | None = None
        self.epoch: float | None = None
        self.config: Configuration | None = None
        #: When ``work`` was last reported.
        self.measured_at: float | None = None
        self._attained = 0.0
        self._attained_by_type = _NO_SERVICE
        self._held_since = at
        self._waited = 0.0
        self._ran_s = 0.0
        self._running_since: float | None = None
        self._confirmed = 0

    def attained_gpu_s(self, now: float) -> float:
        """GPU-seconds held so far."""
        return self._attained + self.held_gpus * (now - self._held_since)

    def attained_by_type(self, now: float) -> Mapping[str, float]:
        """GPU-seconds held so far, by GPU type."""
        if not self.held_gpus:
            return self._attained_by_type
        kind = self.held.gpu_type
        grown = self._attained_by_type.get(kind, 0.0) + self.held_gpus * (now - self._held_since)
        return {**self._attained_by_type, kind: grown}

    def waited_s(self, now: float) -> float:
        """Seconds since submission without GPUs."""
        return self._waited + (0.0 if self.held_gpus else now - self._held_since)

    def ran_s(self, now: float) -> float:
        """Seconds it trained, at whatever size, without those whose outcome was lost with a node."""
        return self._ran_s + (0.0 if self._running_since is None else now - self._running_since)

    def hold(self, placement: Placement, at: float) -> None:
        """From ``at`` on the job's processes hold ``placement``."""
        if self.held_gpus:
            self._attained_by_type = dict(self.attained_by_type(at))
            self._attained = self.attained_gpu_s(at)
        else:
            self._waited = self.waited_s(at)
        self._held_since = at
        self.held = placement
        self.held_gpus = gpus_of(placement, self.spec)

    def issue(self, action: Action, at: float) -> None:
        """An action of ours was sent."""
        self._stop_running(at, lost=isinstance(action, StopJob) and action.why == "node-lost")
        self.phase = next_phase(self.phase, type(action).__name__, self.id)
        self.in_flight, self.in_flight_since = action, at

    def confirm_change(self, what: str, at: float) -> None:
        """The start or resize that was under way is done; its cost enters the mean."""
        self.phase = next_phase(self.phase, what, self.id)
        # the mean is over changes that came to their end: one that was stopped midway tells no cost
        self._confirmed += 1
        mean = self.change_cost_s or 0.0
        self.change_cost_s = mean + (at - self.in_flight_since - mean) / self._confirmed
        self.in_flight, self._running_since = None, at

    def end_attempt(self, event: JobFinished | JobStopped, at: float) -> None:
        """The last process is gone: the job pauses, retries or ends."""
        phase = next_phase(self.phase, type(event).__name__, self.id)
        lost = isinstance(event, JobStopped) and event.cause in ("node-lost", "lost")
        self._stop_running(at, lost=lost)
        self.in_flight = None
        if isinstance(event, JobFinished):
            phase = self._outcome(event)
        elif self.cancelling:
            phase = Phase.CANCELLED
        self.phase = phase

    def _outcome(self, event: JobFinished) -> Phase:
        if event.outcome == "failed":
            if self.cancelling:
                return Phase.CANCELLED  # it did not take the stop well
            if self.failures < self.spec.retries:
                self.failures += 1
                return Phase.PAUSED
        return Phase(event.outcome.upper())

    def _stop_running(self, at: float, *, lost: bool) -> None:
        if not lost:
            self._ran_s = self.ran_s(at)
        self._running_since = None

    def measure(self, measurement: Measurement, at: float) -> None:
        """Takes in an agent's report."""
        if measurement.config.servers:
            self.server_table = parameter_server.observe(self.server_table, measurement)
        elif measurement.step_s > 0:
            self.table = step_time.observe(self.table, measurement)
        if measurement.grad_sqr is not None:
            self.grad_sqr, self.grad_var = measurement.grad_sqr, measurement.grad_var
            self.grad_batch = measurement.config.batch
            self.noise = noise.observe(self.noise, measurement)
        if measurement.metrics and self.spec.target is not None and measurement.work is not None:
            self._follow(measurement.work, measurement.metrics)
        if measurement.work is not None:
            self.work, self.measured_at = measurement.work, at
            self._ran_reported_s = self.ran_s(at)
        if measurement.epoch is not None:
            self.epoch = measurement.epoch
        self.config = measurement.config

    def _follow(self, work: float, metrics: Mapping[str, float]) -> None:
        """The target's metric, as far as it is a number and work has gone on."""
        value = metrics.get(parse_target(self.spec.target or "")[0])
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
    def teaches(self) -> bool:
        """Whether jobs like it can learn from it: one without a model whose length was declared teaches nothing."""
        return self.spec.batch is not None or self.spec.duration_s is None

    def as_past(self, at: float) -> PastJob:
        """What is worth knowing of the job now that it has succeeded."""
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
            change_cost_s=self.change_cost_s,
            changes=self.changes,
        )

    def _total_work(self, at: float) -> float | None:
        """Work at its end: as declared, where it came near that by its speed up to the last report; else by that speed."""
        done, declared = self.work or 0.0, self.declared
        if not done or not self._ran_reported_s:
            return declared if declared is not None else self.work
        total = done * max(self.ran_s(at) / self._ran_reported_s, 1.0)
        if declared is not None and done <= declared and 0.8 * declared <= total <= 1.25 * declared:
            return declared
        return total
