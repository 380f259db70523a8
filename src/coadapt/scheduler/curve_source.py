"""Sources of the scaling curves that a decision uses.

``FittedCurves`` builds the curve of a job from its measurements, and from what the pool knows of jobs like it, the
first time a decision asks for it, and keeps it until these change: a policy that does not use curves causes no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from coadapt.configure.curve import Curve, FittedCurve, RigidCurve, ServerCurve
from coadapt.model import Batch, JobSpec
from coadapt.prediction.remaining import past_jobs
from coadapt.prediction.remaining.past_jobs import NO_PRIOR, Features, Pool, Prior
from coadapt.prediction.remaining.work import RemainingEvidence, evidence_for
from coadapt.prediction.step_time import DEFAULT_MODEL
from coadapt.prediction.step_time._base import StepTimeModel
from coadapt.prediction.step_time._base import step_time_model as by_name
from coadapt.prediction.step_time.step_table import StepTimeTable
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState


class CurveSource(Protocol):
    """Fitted from measurements, or (an oracle's) from the simulator's ground truth."""

    def of(self, state: SchedulerState) -> Mapping[str, Curve]:
        """Returns the curves of all active jobs, each made when it is first read."""


class LazyCurves(Mapping[str, Curve]):
    """Curves of the active jobs by name; ``make`` is called on first use."""

    def __init__(self, source: FittedCurves, state: SchedulerState) -> None:
        self._source, self._state = source, state
        self._refitted = False

    def __getitem__(self, job: str) -> Curve:
        return self._source.curve(self._state.active[job], self._refit)

    def _refit(self) -> None:
        """Once per decision, when the first curve needs a fit."""
        if not self._refitted:
            self._refitted = True
            self._source.refit(self._state)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.active)

    def __len__(self) -> int:
        return len(self._state.active)


class ByType(NamedTuple):
    """Batch limits, and examples per second on one GPU, by GPU type."""

    limits: Mapping[str, Batch] = {}
    one_gpu: Mapping[str, float] = {}


class FittedCurves:
    """Curves from measurements, cached until a job's table, gradients, progress or past change.

    ``step_time_model``: the one that the policy names, or an instance.
    ``learns``: False leaves the pool of past jobs aside.
    """

    def __init__(self, *, step_time_model: str | StepTimeModel = DEFAULT_MODEL, learns: bool = True) -> None:
        self.model = by_name(step_time_model)
        self._learns = learns and self.model.uses_past_jobs
        self._cache: dict[str, tuple[tuple[object, ...], Curve]] = {}
        self._priors = Priors()

    def of(self, state: SchedulerState) -> Mapping[str, Curve]:
        """Returns the curves of all active jobs, each fitted when it is first read."""
        if len(self._cache) > 2 * len(state.active) + 16:
            self._cache = {name: entry for name, entry in self._cache.items() if name in state.active}
        if self._learns:
            self._priors.follow(state.pool)
        return LazyCurves(self, state)

    def refit(self, state: SchedulerState) -> None:
        """Fits all active jobs at once: a decision that asks for one curve will ask for all, and fits are kept."""
        if not self.model.fits_together:
            return  # one by one when asked
        by_type: dict[str, list[StepTimeTable]] = {}
        for job in state.active.values():
            table = past_jobs.joined(job.table, self._prior(job).table)
            for gpu_type in table.gpu_types:
                if (self.model.name, gpu_type) not in table.fitted:
                    by_type.setdefault(gpu_type, []).append(table)
        for gpu_type in sorted(by_type):
            self.model.fit_many(by_type[gpu_type], gpu_type=gpu_type)

    def curve(self, job: JobState, before_fit: Callable[[], None] | None = None) -> Curve:
        """Returns the job's curve as of its newest measurements."""
        prior = self._prior(job)
        # tables and priors by identity: they stay the same objects while nothing new is learned
        facts = (job.server_table, job.grad_sqr, job.grad_var, job.work, job.spec, len(job.course), job.share)
        key = (id(job.table), id(prior), facts)
        known = self._cache.get(job.id)
        if known is not None and known[0][:3] == key:
            return _told(known[1], before_fit)
        evidence = evidence_for(job.spec, done=job.work or 0.0, course=job.course, past=prior, told=job.told)
        curve = _make(job, self.model, prior, evidence, self.by_type(job))
        # what the key names by identity is kept with it, or another object could take its place
        self._cache[job.id] = ((*key, job.table, prior), curve)
        return _told(curve, before_fit)

    def by_type(self, job: JobState) -> ByType:
        """Returns what is known about the job on single GPU types besides its measurements.

        Nothing, unless a subclass overrides it.
        """
        return ByType()

    def _prior(self, job: JobState) -> Prior:
        return self._priors.of(job.spec) if self._learns else NO_PRIOR


class Priors:
    """Priors from the pool of past jobs, computed once for jobs that are alike in every feature."""

    def __init__(self) -> None:
        self._pool = Pool()
        self._known: dict[Features, Prior] = {}

    def follow(self, pool: Pool) -> None:
        """Uses ``pool`` from now on."""
        if pool is not self._pool:
            self._pool, self._known = pool, {}

    def of(self, spec: JobSpec) -> Prior:
        """Returns the prior of a job with this specification."""
        if not self._pool.jobs:
            return NO_PRIOR
        key = past_jobs.features(past_jobs.past_job(spec))
        if key not in self._known:
            self._known[key] = past_jobs.prior_for(self._pool, spec)
        return self._known[key]


def _told(curve: Curve, before_fit: Callable[[], None] | None) -> Curve:
    """The curve, told whom to ask in this decision."""
    if isinstance(curve, FittedCurve):
        curve.before_fit = before_fit
    return curve


def _make(
    job: JobState,
    model: StepTimeModel,
    prior: Prior,
    evidence: RemainingEvidence,
    by_type: ByType,
) -> Curve:
    if job.spec.batch is None:
        return RigidCurve(spec=job.spec, evidence=evidence)
    if job.spec.sync != "allreduce":
        return ServerCurve(spec=job.spec, table=job.server_table, evidence=evidence, step_time_model=model)
    return FittedCurve(
        spec=job.spec,
        table=job.table,
        grad_sqr=job.grad_sqr,
        grad_var=job.grad_var,
        grad_batch=job.grad_batch,
        evidence=evidence,
        past=prior,
        step_time_model=model,
        limits_by_type=by_type.limits,
        one_gpu=by_type.one_gpu,
    )
