"""Speed of a job with parameter servers: Optimus (Peng et al., EuroSys 2018), section 3.2.

With w workers, p servers and total batch size B, the time of one step is

    synchronous   a B/w + b + c w/p + d w + e p     all workers take it together:   1/T steps per second
    asynchronous  a + b w/p + c w + d p             each worker takes its own:      w/T steps per second

with coefficients >= 0. ``"published"``: non-negative least squares. The formula is linear in T, not in the
speed; each row is divided by its T, so that relative errors are minimised and slow configurations do
not dominate. ``"ours"``: the same terms and one for a single server, with priors and a residual (``server_fit``);
``prior_from`` makes the priors from finished jobs. Where we deviate in both: the authors let a measured
speed override the fitted one; here it is the fit throughout, with an interval that holds the measured one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Configuration, Fact, Measurement
from coadapt.predict import server_fit
from coadapt.predict._base import Estimate, FloatArray, relative_interval, t_quantile

Method = Literal["ours", "published"]

#: Fewest configurations for the published fit (one per coefficient), and for ours without a prior.
MIN_POINTS = {False: 4, True: 5}
LEAST_POINTS = 3
#: Prior of ours: logarithms of the coefficients in order, that of 1/p last, in units of the job's mean step time
#: (and batch size), each within a factor exp(1.5) in two of three jobs. Chosen on half of the models of DL2.
_MEANS = {True: (-0.8, -1.0, -1.8, -3.5, -5.5, -1.8), False: (-0.8, -1.8, -3.5, -5.5, -1.8)}
_DEVIATION = 1.5
#: Deviation of a prior from finished jobs: theirs times this, and at least so much besides.
_WIDER, _LEAST_DEVIATION = 1.3, 0.4
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
    #: Published: of log speed around the fit. Ours: in units of what was assumed.
    scatter: float
    points: int
    #: Ours only: coefficient of 1/p; (servers, workers, batch, left over of log T) by point; the prior's deviations;
    #: mean step time and batch size (geometric) of the points, which priors are in units of.
    single_server_s: float = 0.0
    support: tuple[tuple[float, float, float, float], ...] = ()
    deviations: tuple[float, ...] = ()
    unit_s: float = 1.0
    unit_batch: float = 1.0

    @property
    def assumed(self) -> bool:
        """Fewer configurations than parameters: what is predicted rests on a prior, with a wide interval."""
        return self.points <= len(self.coefficients)


class ServerPrior(Fact, frozen=True):
    """What logarithms of coefficients usually are, in units of a job's mean step time and batch size."""

    synchronous: bool
    means: tuple[float, ...]
    deviations: tuple[float, ...]


def _key(row: ServerRow) -> tuple[int, int, int]:
    return row.servers, row.workers, row.batch


def observe(table: ServerTable, measurement: Measurement) -> ServerTable:
    """The table with ``measurement`` merged in; the same object if it says nothing new."""
    config, step_s, count = measurement.config, measurement.step_s, measurement.count
    if config.servers < 1 or not 0 < step_s < math.inf or count <= 0:
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


def prior_from(finished: Iterable[ServerParams]) -> ServerPrior | None:
    """The prior that jobs fitted by ours make, all synchronous or all not; None of fewer than two."""
    jobs = [params for params in finished if params.support]
    if len(jobs) < 2:
        return None
    logs = np.array([_theta(params) for params in jobs])
    spread = _WIDER**2 * logs.var(axis=0, ddof=1) * (1 + 1 / len(jobs))
    return ServerPrior(
        synchronous=jobs[0].synchronous,
        means=tuple(logs.mean(axis=0).tolist()),
        deviations=tuple(np.sqrt(spread + _LEAST_DEVIATION**2).tolist()),
    )


def fit(
    table: ServerTable, prior: ServerParams | ServerPrior | None = None, *, method: Method = "ours"
) -> ServerParams | None:
    """Coefficients. Params given as ``prior`` stand in while there are too few configurations. Memoised."""
    rows = len(table.rows)
    if method == "ours" and isinstance(prior, ServerPrior) and rows:
        return _fit_ours(table, prior)
    if method == "ours" and rows >= LEAST_POINTS:
        return _fit_ours(table, None)
    if method == "published" and rows >= MIN_POINTS[table.synchronous]:
        return _fit_published(table)
    return prior if isinstance(prior, ServerParams) else None


@lru_cache(maxsize=1024)
def _fit_ours(table: ServerTable, prior: ServerPrior | None) -> ServerParams:
    servers, workers, batch, step_s = _columns(table)
    unit_s, unit_batch = (float(np.exp(np.log(column).mean())) for column in (step_s, batch))
    means = np.array(prior.means if prior is not None else _MEANS[table.synchronous])
    deviations = np.array(prior.deviations) if prior is not None else np.full(len(means), _DEVIATION)
    terms = _all_terms(table.synchronous, servers, workers, batch / unit_batch)
    inverse = server_fit.inverse_covariance(servers, workers)
    found = server_fit.solve(terms, np.log(step_s / unit_s), inverse, means, deviations)
    seconds = unit_s * np.exp(found.theta)
    if table.synchronous:
        seconds[0] /= unit_batch
    support = zip(servers.tolist(), workers.tolist(), batch.tolist(), found.left.tolist(), strict=True)
    return ServerParams(
        synchronous=table.synchronous,
        coefficients=tuple(seconds[:-1].tolist()),
        scatter=found.scale,
        points=len(step_s),
        single_server_s=float(seconds[-1]),
        support=tuple(support),
        deviations=tuple(deviations.tolist()),
        unit_s=unit_s,
        unit_batch=unit_batch,
    )


def _theta(params: ServerParams) -> FloatArray:
    """Logarithms of all coefficients in units of the job."""
    seconds = np.array([*params.coefficients, params.single_server_s])
    if params.synchronous:
        seconds[0] *= params.unit_batch
    return np.asarray(np.log(seconds / params.unit_s))


@lru_cache(maxsize=1024)
def _fit_published(table: ServerTable) -> ServerParams:
    servers, workers, batch, step_s = _columns(table)
    design = _terms(table.synchronous, servers, workers, batch) / step_s[:, None]
    from scipy.optimize import nnls  # only here: a replica that starts should not wait for scipy

    coefficients, _ = nnls(design, np.ones(len(step_s)))
    residual = np.log(design @ coefficients)
    squares = float(residual @ residual) + _PRIOR_POINTS * _PRIOR_SCATTER**2
    return ServerParams(
        synchronous=table.synchronous,
        coefficients=tuple(coefficients.tolist()),
        scatter=math.sqrt(squares / (len(step_s) + _PRIOR_POINTS)),
        points=len(step_s),
    )


def _columns(table: ServerTable) -> FloatArray:
    return np.array([(r.servers, r.workers, r.batch, r.step_s) for r in table.rows], dtype=np.float64).T


def _terms(synchronous: bool, servers: FloatArray, workers: FloatArray, batch: FloatArray) -> FloatArray:
    """One row per configuration, one column per coefficient."""
    one = np.ones(np.broadcast(servers, workers, batch).shape)
    if synchronous:
        columns = [batch / workers, one, workers / servers, one * workers, one * servers]
    else:
        columns = [one, workers / servers, one * workers, one * servers]
    return np.stack([np.broadcast_to(column, one.shape) for column in columns], axis=-1)


def _all_terms(synchronous: bool, servers: FloatArray, workers: FloatArray, batch: FloatArray) -> FloatArray:
    terms = _terms(synchronous, servers, workers, batch)
    single = np.broadcast_to(1 / servers, terms.shape[:-1])[..., None]
    return np.concatenate([terms, single], axis=-1)


def speed(
    params: ServerParams, servers: npt.ArrayLike, workers: npt.ArrayLike, batch: npt.ArrayLike
) -> FloatArray:
    """Steps per second of the whole job; arguments broadcast."""
    p, w, b = (np.asarray(x, dtype=np.float64) for x in (servers, workers, batch))
    step_s = _terms(params.synchronous, p, w, b) @ np.array(params.coefficients)
    if params.support:
        at = _support(params.support)
        left = server_fit.kernel(p, w, at.servers, at.workers) @ at.weights
        step_s = (step_s + params.single_server_s / p) * np.exp(left)
    return np.asarray((1.0 if params.synchronous else w) / step_s)


class _Support(NamedTuple):
    servers: FloatArray
    workers: FloatArray
    batch: FloatArray
    inverse: FloatArray
    weights: FloatArray


@lru_cache(maxsize=1024)
def _support(rows: tuple[tuple[float, ...], ...]) -> _Support:
    servers, workers, batch, left = np.array(rows).T
    inverse = server_fit.inverse_covariance(servers, workers)
    return _Support(servers, workers, batch, inverse, inverse @ left)


def predict(params: ServerParams, x: Configuration) -> Estimate:
    """Steps per second of the whole job in configuration ``x``."""
    value = float(speed(params, x.servers, x.replicas, x.batch))
    if params.support:
        return relative_interval(value, log_width(params, x.servers, x.replicas, x.batch))
    width = params.scatter * math.sqrt(1 + len(params.coefficients) / params.points)
    return relative_interval(value, width * t_quantile(params.points - len(params.coefficients)))


def log_width(params: ServerParams, servers: float, workers: float, batch: float) -> float:
    """Half-width of the interval of log speed, of ours."""
    at, theta = _support(params.support), _theta(params)
    p, w, b = np.array([servers]), np.array([workers]), np.array([batch / params.unit_batch])
    slopes, _ = server_fit.log_slopes(_all_terms(params.synchronous, p, w, b), theta)
    terms = _all_terms(params.synchronous, at.servers, at.workers, at.batch / params.unit_batch)
    at_slopes, _ = server_fit.log_slopes(terms, theta)
    alike = server_fit.kernel(p, w, at.servers, at.workers)[0]
    variance = server_fit.variance(alike, at.inverse, slopes[0], at_slopes, np.array(params.deviations))
    freedom = params.points + server_fit.ASSUMED_POINTS
    return params.scatter * math.sqrt(variance) * t_quantile(freedom)
