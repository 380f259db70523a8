"""Where a decision's scaling curves come from.

``FittedCurves`` builds a job's curve from its measurements the first time a decision asks for it, and
keeps it until the measurements change: a policy that never looks at curves never causes a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from coadapt.configure import Curve, FittedCurve, RigidCurve, ServerCurve
from coadapt.predict import step_time
from coadapt.predict.step_time import Method, StepTimeTable
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.state import SchedulerState


class CurveSource(Protocol):
    """Fitted from measurements, or (an oracle's) from the simulator's ground truth."""

    def of(self, state: SchedulerState) -> Mapping[str, Curve]:
        """The curves of all active jobs, each made when it is first looked at."""


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


class FittedCurves:
    """Curves from measurements, cached until a job's table, gradients or progress change.

    ``method``: the product's step-time model, or the one a policy was published with.
    """

    def __init__(self, *, method: Method = "ours") -> None:
        self.method: Method = method
        self._cache: dict[str, tuple[object, Curve]] = {}
        self._fitted: dict[str, StepTimeTable] = {}

    def of(self, state: SchedulerState) -> Mapping[str, Curve]:
        """See ``CurveSource``."""
        if len(self._cache) > 2 * len(state.active) + 16:
            self._cache = {name: entry for name, entry in self._cache.items() if name in state.active}
            self._fitted = {name: table for name, table in self._fitted.items() if name in state.active}
        return LazyCurves(self, state)

    def refit(self, state: SchedulerState) -> None:
        """Fits all active jobs that changed, at once: a decision that asks for one curve will ask for all."""
        if self.method == "published":
            return  # one by one when asked, as released
        stale = {
            name: job.table
            for name, job in state.active.items()
            if job.table.rows and self._fitted.get(name) is not job.table
        }
        for gpu_type in sorted({row.gpu_type for table in stale.values() for row in table.rows}):
            step_time.fit_many(list(stale.values()), gpu_type=gpu_type)
        self._fitted.update(stale)

    def curve(self, job: JobState, before_fit: Callable[[], None] | None = None) -> Curve:
        """The job's curve as of its newest measurements."""
        key = (id(job.table), job.table, job.server_table, job.grad_sqr, job.grad_var, job.work, job.spec)
        known = self._cache.get(job.id)
        if known is not None and _same(known[0], key):
            return known[1]
        curve = _make(job, self.method, before_fit)
        self._cache[job.id] = (key, curve)
        return curve


def _same(one: object, other: tuple[object, ...]) -> bool:
    # the table by identity: observe() returns the same object while nothing new is learned
    return isinstance(one, tuple) and one[0] == other[0] and one[2:] == other[2:]


def _make(job: JobState, method: Method, before_fit: Callable[[], None] | None) -> Curve:
    if job.spec.batch is None:
        return RigidCurve(spec=job.spec, work_done=job.work or 0.0)
    if job.spec.sync != "allreduce":
        return ServerCurve(spec=job.spec, table=job.server_table, work_done=job.work or 0.0, method=method)
    return FittedCurve(
        spec=job.spec,
        table=job.table,
        grad_sqr=job.grad_sqr,
        grad_var=job.grad_var,
        work_done=job.work or 0.0,
        method=method,
        before_fit=before_fit,
    )
