"""What a job's agent has reported, and what is worth knowing of it when it has ended."""

from __future__ import annotations

import math
from collections.abc import Mapping

from coadapt.model import Configuration, JobSpec, Measurement
from coadapt.model.tries import is_progress
from coadapt.predict import noise, parameter_server, step_time
from coadapt.predict.adaptive_run import Stretch, place
from coadapt.predict.history import PastJob, past_job
from coadapt.predict.noise import NoiseTable
from coadapt.predict.remaining import declared_work, parse_target
from coadapt.scheduler.job_service import JobService

#: Points of a metric's course that are kept; beyond, every second one goes.
_MOST_COURSE = 256
#: Stretches between reports that are kept, and metrics.
_MOST_STRETCHES, _MOST_METRICS = 32, 64
_NO_METRICS: dict[str, float] = {}


class JobReports(JobService):
    """Tables for the predictors, the last values for whoever looks."""

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
        self.table = step_time.EMPTY_TABLE
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
        """Takes in an agent's report."""
        m = measurement
        if m.config.servers:
            self.server_table = parameter_server.observe(self.server_table, m)
        elif m.step_s > 0:
            self.table = step_time.observe(self.table, m)
        if m.grad_sqr is not None:
            self.grad_sqr, self.grad_var = m.grad_sqr, m.grad_var
            self.grad_batch = m.config.batch
            self.noise = noise.observe(self.noise, m)
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
    def told(self) -> float | None:
        """How much it will do by its own word, in the unit of ``declared``; None where it does not tell."""
        return self.share_of / self.share if self.share and self.share_of > 0 else None

    @property
    def teaches(self) -> bool:
        """Whether jobs like it can learn from it: one without a model whose length was declared teaches nothing."""
        return self.spec.batch is not None or self.spec.duration_s is None

    def past(self, at: float, *, change_cost_s: float | None, changes: int) -> PastJob:
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
