"""What can be true of past jobs. A pool is a file that people copy, edit and cut; a value that cannot be would bend every prediction
made from it, or break a fit long after it was read."""

from __future__ import annotations

from collections.abc import Iterator

from coadapt.predict.history import PastJob, Pool
from coadapt.predict.step_table import StepTimeRow

#: Least and most of every number, generous: nothing that was measured lies outside.
_Bounds = dict[str, tuple[float, float]]
_YEAR_S = 366 * 86400.0
_POOL: _Bounds = {"limit": (1, 1e6)}
_JOB: _Bounds = {
    "parameters": (0, 1e18),
    "data_size": (0, 1e18),
    "batch": (0, 1e12),
    "finished_at": (-1e12, 1e12),
    "total_work": (0, 1e24),
    "declared_work": (0, 1e24),
    "change_cost_s": (0, _YEAR_S),
    "changes": (0, 1e9),
}
_NOISE: _Bounds = {"share": (0, 1), "phi": (0, 1e30)}
_ROW: _Bounds = {
    "nodes": (1, 1e6),
    "replicas": (1, 1e6),
    "atomic_batch": (1, 1e12),
    "count": (1, 1e15),
    "step_s": (1e-12, _YEAR_S),
    "sync_s": (0, _YEAR_S),
    "step_var": (0, _YEAR_S**2),
    "sync_var": (0, _YEAR_S**2),
    "fit_step_s": (1e-12, _YEAR_S),
    "fit_sync_s": (0, _YEAR_S),
}


def impossible(pool: Pool) -> str | None:
    """The first value that cannot be, with its job and field; None where all can."""
    for problem in _outside(pool, _POOL, "its "):
        return problem
    for job in pool.jobs:
        name = job.name if len(job.name) <= 60 else f"{job.name[:57]}..."
        for problem in _of_job(job):
            return f"job {name!r}: {problem}"
    return None


def _of_job(job: PastJob) -> Iterator[str]:
    yield from _outside(job, _JOB, "")
    for number, point in enumerate(job.noise, start=1):
        for field, value in zip(_NOISE, point, strict=True):
            yield from _beyond(f"noise {number}: {field}", value, *_NOISE[field])
    for number, row in enumerate(job.table.rows, start=1):
        yield from _outside(row, _ROW, f"row {number} of its table: ")


def _outside(thing: Pool | PastJob | StepTimeRow, bounds: _Bounds, where: str) -> Iterator[str]:
    for field, (least, most) in bounds.items():
        value = getattr(thing, field)
        if value is not None:
            yield from _beyond(f"{where}{field}", value, least, most)


def _beyond(what: str, value: float, least: float, most: float) -> Iterator[str]:
    # written so that a NaN is refused; whole numbers may be too long for a float
    if not least <= value <= most:
        shown = str(value)
        yield f"{what} {shown if len(shown) <= 30 else shown[:27] + '...'} is not possible; it is from {least:g} to {most:g}"
