"""Speed of a job with parameter servers: Optimus (Peng et al., EuroSys 2018), section 3.2.

With w workers, p servers and total batch size B, the time of one step is

    synchronous   a B/w + b + c w/p + d w + e p     all workers take it together:   1/T steps per second
    asynchronous  a + b w/p + c w + d p             each worker takes its own:      w/T steps per second

with coefficients >= 0, found by non-negative least squares. The formula is linear in T, not in the
speed; each row is divided by its T, so that relative errors are minimised and slow configurations do
not dominate. Where we deviate: the authors let a measured speed override the fitted one; ours is the
fit throughout, with an interval that holds the measured one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from scipy.optimize import nnls

from coadapt.model import Configuration, Fact, Measurement
from coadapt.predict._base import Estimate, FloatArray, relative_interval, t_quantile

#: Fewest configurations for a fit: one per coefficient.
MIN_POINTS = {False: 4, True: 5}
#: Scatter of log speed before residuals say otherwise, worth so many points.
_PRIOR_SCATTER, _PRIOR_POINTS = 0.15, 3


class ServerRow(Fact, frozen=True):
    """Mean time of a worker's step in one configuration."""

    servers: int
    workers: int
    batch: int
    count: int
    step_s: float


class ServerTable(Fact, frozen=True):
    """Rows in order of (servers, workers, batch)."""

    synchronous: bool = True
    rows: tuple[ServerRow, ...] = ()


class ServerParams(Fact, frozen=True):
    """Coefficients in the order of the formula, in seconds."""

    synchronous: bool
    coefficients: tuple[float, ...]
    scatter: float
    points: int


def _key(row: ServerRow) -> tuple[int, int, int]:
    return row.servers, row.workers, row.batch


def observe(table: ServerTable, measurement: Measurement) -> ServerTable:
    """The table with ``measurement`` merged in; the same object if it says nothing new."""
    config, step_s, count = measurement.config, measurement.step_s, measurement.count
    if config.servers < 1 or step_s <= 0 or count <= 0:
        return table
    row = ServerRow(
        servers=config.servers, workers=config.replicas, batch=config.batch, count=count, step_s=step_s
    )
    at = bisect_left(table.rows, _key(row), key=_key)
    end = at
    if at < len(table.rows) and _key(table.rows[at]) == _key(row):
        old, end = table.rows[at], at + 1
        mean = old.step_s + (step_s - old.step_s) * count / (old.count + count)
        if mean == old.step_s:
            return table
        row = replace(old, count=old.count + count, step_s=mean)
    return replace(table, rows=(*table.rows[:at], row, *table.rows[end:]))


def fit(table: ServerTable, prior: ServerParams | None = None) -> ServerParams | None:
    """Coefficients; ``prior`` while there are fewer configurations than coefficients. Memoised."""
    return _fit(table) if len(table.rows) >= MIN_POINTS[table.synchronous] else prior


@lru_cache(maxsize=1024)
def _fit(table: ServerTable) -> ServerParams:
    data = np.array([(r.servers, r.workers, r.batch, r.step_s) for r in table.rows], dtype=np.float64)
    servers, workers, batch, step_s = data.T
    design = _terms(table.synchronous, servers, workers, batch) / step_s[:, None]
    coefficients, _ = nnls(design, np.ones(len(step_s)))
    residual = np.log(design @ coefficients)
    squares = float(residual @ residual) + _PRIOR_POINTS * _PRIOR_SCATTER**2
    return ServerParams(
        synchronous=table.synchronous,
        coefficients=tuple(coefficients.tolist()),
        scatter=math.sqrt(squares / (len(step_s) + _PRIOR_POINTS)),
        points=len(step_s),
    )


def _terms(synchronous: bool, servers: FloatArray, workers: FloatArray, batch: FloatArray) -> FloatArray:
    """One row per configuration, one column per coefficient."""
    one = np.ones(np.broadcast(servers, workers, batch).shape)
    if synchronous:
        columns = [batch / workers, one, workers / servers, one * workers, one * servers]
    else:
        columns = [one, workers / servers, one * workers, one * servers]
    return np.stack([np.broadcast_to(column, one.shape) for column in columns], axis=-1)


def speed(
    params: ServerParams, servers: npt.ArrayLike, workers: npt.ArrayLike, batch: npt.ArrayLike
) -> FloatArray:
    """Steps per second of the whole job; arguments broadcast."""
    p, w, b = (np.asarray(x, dtype=np.float64) for x in (servers, workers, batch))
    step_s = _terms(params.synchronous, p, w, b) @ np.array(params.coefficients)
    return np.asarray((1.0 if params.synchronous else w) / step_s)


def predict(params: ServerParams, x: Configuration) -> Estimate:
    """Steps per second of the whole job in configuration ``x``."""
    value = float(speed(params, x.servers, x.replicas, x.batch))
    width = params.scatter * math.sqrt(1 + len(params.coefficients) / params.points)
    return relative_interval(value, width * t_quantile(params.points - len(params.coefficients)))
