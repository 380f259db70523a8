"""The table behind a step-time fit: one row per configuration that was measured.

A row keeps exact statistics (count, mean, variance) of all reports, and beside them the means the fit
works with. These follow the exact means only once those have moved by more than ``DRIFT``: noise that
no fit could make use of does not cause one, and no report is lost by it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from coadapt.model import Fact, Measurement

#: Relative change of a mean that is worth a new fit.
DRIFT = 2e-3
#: Relative difference below which two noise-free reports say the same.
SAME = 1e-9
#: Smallest share of a step that counts as computation; a report of less is a flaw of the profiler.
LEAST_COMPUTE = 1e-3


#: nodes, replicas, atomic batch, seconds of a backward pass, seconds of a step
Point = tuple[int, int, int, float, float]


class StepTimeRow(Fact, frozen=True):
    """Steps without accumulation in one configuration. Time in seconds."""

    gpu_type: str
    nodes: int
    replicas: int
    atomic_batch: int
    count: int
    step_s: float
    sync_s: float
    step_var: float
    sync_var: float
    #: The means as the fit sees them, within DRIFT of ``step_s`` and ``sync_s``.
    fit_step_s: float
    fit_sync_s: float

    @property
    def grad_s(self) -> float:
        """Time of one backward pass as the fit sees it: the step without its synchronisation."""
        return max(self.fit_step_s - self.fit_sync_s, LEAST_COMPUTE * self.fit_step_s)


class StepTimeTable(Fact, frozen=True, dict=True):
    """Rows in order of (GPU type, nodes, replicas, atomic batch)."""

    rows: tuple[StepTimeRow, ...] = ()

    def max_replicas(self, gpu_type: str | None = None) -> int:
        """Most replicas measured so far (on one type, or on any); 0 before the first report."""
        most = self._most_replicas
        return most.get(gpu_type, 0) if gpu_type is not None else max(most.values(), default=0)

    @property
    def gpu_types(self) -> Collection[str]:
        """GPU types that the job was measured on."""
        return self._most_replicas.keys()

    def points(self, gpu_type: str) -> tuple[Point, ...]:
        """Points to fit on one GPU type."""
        return self._points.get(gpu_type, ())

    @cached_property
    def fitted(self) -> dict[tuple[str, str], Any]:
        """Fits to this table alone, by model and GPU type; filled by ``StepTimeModel.fit``."""
        return {}

    # decisions ask for these again and again, of tables that seldom change
    @cached_property
    def _most_replicas(self) -> dict[str, int]:
        most: dict[str, int] = {}
        for row in self.rows:
            most[row.gpu_type] = max(most.get(row.gpu_type, 0), row.replicas)
        return most

    @cached_property
    def _points(self) -> dict[str, tuple[Point, ...]]:
        return {
            gpu_type: tuple(
                (row.nodes, row.replicas, row.atomic_batch, row.grad_s, row.fit_step_s)
                for row in self.rows
                if row.gpu_type == gpu_type
            )
            for gpu_type in self._most_replicas
        }


EMPTY_TABLE = StepTimeTable()
#: Configurations of one job that are kept, far more than any job tries; further ones are ignored.
MOST_ROWS = 1000

_Key = tuple[str, int, int, int]


def _key(row: StepTimeRow) -> _Key:
    return row.gpu_type, row.nodes, row.replicas, row.atomic_batch


def observe(table: StepTimeTable, measurement: Measurement) -> StepTimeTable:
    """The table with ``measurement`` merged in; the same object if it only repeats an exact row.

    A report without times (``step_s`` or ``count`` not positive) says nothing here, nor does one with a time
    that is not a number.
    """
    m = measurement
    finite = math.isfinite(m.step_s + m.sync_s + m.step_var + m.sync_var)
    if not finite or m.step_s <= 0 or m.count <= 0 or min(m.sync_s, m.step_var, m.sync_var) < 0:
        return table
    key = (m.config.gpu_type, m.config.nodes, m.config.replicas, m.config.atomic_batch)
    at = bisect_left(table.rows, key, key=_key)
    if at == len(table.rows) or _key(table.rows[at]) != key:
        if len(table.rows) >= MOST_ROWS:
            return table
        return StepTimeTable(rows=(*table.rows[:at], _first(key, m), *table.rows[at:]))
    old = table.rows[at]
    if _repeats(old, m):
        return table
    return StepTimeTable(rows=(*table.rows[:at], _merged(old, m), *table.rows[at + 1 :]))


def _first(key: _Key, m: Measurement) -> StepTimeRow:
    return StepTimeRow(
        gpu_type=key[0],
        nodes=key[1],
        replicas=key[2],
        atomic_batch=key[3],
        count=m.count,
        step_s=m.step_s,
        sync_s=m.sync_s,
        step_var=m.step_var,
        sync_var=m.sync_var,
        fit_step_s=m.step_s,
        fit_sync_s=m.sync_s,
    )


def _repeats(row: StepTimeRow, m: Measurement) -> bool:
    """A noise-free source says again what it has said: a simulator, at every report."""
    tolerance = SAME * row.step_s
    return (
        row.step_var == m.step_var == row.sync_var == m.sync_var == 0.0
        and abs(m.step_s - row.step_s) <= tolerance
        and abs(m.sync_s - row.sync_s) <= tolerance
    )


def _merged(row: StepTimeRow, m: Measurement) -> StepTimeRow:
    step_s, step_var = _pooled(row.count, row.step_s, row.step_var, m.count, m.step_s, m.step_var)
    sync_s, sync_var = _pooled(row.count, row.sync_s, row.sync_var, m.count, m.sync_s, m.sync_var)
    limit = DRIFT * row.fit_step_s
    moved = abs(step_s - row.fit_step_s) > limit or abs(sync_s - row.fit_sync_s) > limit
    return replace(
        row,
        count=row.count + m.count,
        step_s=step_s,
        sync_s=sync_s,
        step_var=step_var,
        sync_var=sync_var,
        fit_step_s=step_s if moved else row.fit_step_s,
        fit_sync_s=sync_s if moved else row.fit_sync_s,
    )


def _pooled(n: int, mean: float, var: float, k: int, mean_k: float, var_k: float) -> tuple[float, float]:
    """Mean and variance of two samples taken together."""
    share = k / (n + k)
    delta = mean_k - mean
    return mean + share * delta, (1 - share) * var + share * var_k + share * (1 - share) * delta * delta
