"""Speed of a job with parameter servers: Optimus (Peng et al., EuroSys 2018), section 3.2, as published and with priors and a residual.

With w workers, p servers and total batch size B, the time of one step is

    synchronous   a B/w + b + c w/p + d w + e p     all workers take it together:   1/T steps per second
    asynchronous  a + b w/p + c w + d p             each worker takes its own:      w/T steps per second

with coefficients >= 0.

``fit_published``: non-negative least squares. The formula is linear in T, not in the speed; each row is divided by its T,
so that relative errors are minimised and slow configurations do not dominate.

``fit``, the default: the same terms and one for a single server, with priors and a residual:

    minimise  r' C^-1 r + sum ((theta - mean) / deviation)^2,     r = log T - log(terms @ exp(theta))

``terms`` are those of the formula and 1/p: what one worker alone waits for one server, which the formula counts as if it
vanished with the workers. Measured speeds deviate from any smooth formula by how evenly p servers share the parameters and
by how w workers are spread, so C has a smooth part, a part that correlates only similar p, and one for similar w; all in
logarithms, and all decreasing with distance. ``prior_from`` makes the priors from finished jobs.

Where we deviate in both: the authors let a measured speed override the fitted one; here it is the fit throughout,
with an interval that holds the measured one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Configuration, Fact, Measurement
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, relative_interval, t_quantile

#: Fewest configurations for the published fit (one per coefficient), and for ours without a prior.
MIN_POINTS = {False: 4, True: 5}
LEAST_POINTS = 3
#: Prior of ours: logarithms of the coefficients in order, that of 1/p last, in units of the job's mean step time
#: (and batch size), each within a factor exp(1.5) in two of three jobs. Chosen on half of the models of DL2.
_MEANS = {True: (-0.8, -1.0, -1.8, -3.5, -5.5, -1.8), False: (-0.8, -1.8, -3.5, -5.5, -1.8)}
_DEVIATION = 1.5
#: Deviation of a prior from finished jobs: theirs times this, and at least so much besides.
_WIDER, _LEAST_DEVIATION = 1.3, 0.4
#: Assumed scatter of log speed before there are residuals, and the number of points that it counts.
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
        """Whether there are fewer configurations than parameters, so that predictions rest on a prior, with a wide interval."""
        return self.points <= len(self.coefficients)


class ServerPrior(Fact, frozen=True):
    """Usual logarithms of coefficients, in units of a job's mean step time and batch size."""

    synchronous: bool
    means: tuple[float, ...]
    deviations: tuple[float, ...]


def _key(row: ServerRow) -> tuple[int, int, int]:
    return row.servers, row.workers, row.batch


#: Sizes of one job that are kept, far more than any job tries; further ones are ignored.
MOST_ROWS = 1000


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
    elif len(table.rows) >= MOST_ROWS:
        return table
    return replace(table, rows=(*table.rows[:at], row, *table.rows[end:]))


def prior_from(finished: Iterable[ServerParams]) -> ServerPrior | None:
    """Prior from jobs fitted by ``fit``, all synchronous or all asynchronous; None for fewer than two."""
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


def fit(table: ServerTable, prior: ServerParams | ServerPrior | None = None) -> ServerParams | None:
    """Fit the coefficients; ``prior`` params are returned while there are too few configurations. Memoised."""
    rows = len(table.rows)
    if isinstance(prior, ServerPrior) and rows:
        return _fit_ours(table, prior)
    if rows >= LEAST_POINTS:
        return _fit_ours(table, None)
    return prior if isinstance(prior, ServerParams) else None


def fit_published(table: ServerTable, prior: ServerParams | ServerPrior | None = None) -> ServerParams | None:
    """Fit the coefficients by the published method, which uses no prior for them."""
    if len(table.rows) >= MIN_POINTS[table.synchronous]:
        return _fit_published(table)
    return prior if isinstance(prior, ServerParams) else None


@lru_cache(maxsize=1024)
def _fit_ours(table: ServerTable, prior: ServerPrior | None) -> ServerParams:
    servers, workers, batch, step_s = _columns(table)
    unit_s, unit_batch = (float(np.exp(np.log(column).mean())) for column in (step_s, batch))
    means = np.array(prior.means if prior is not None else _MEANS[table.synchronous])
    deviations = np.array(prior.deviations) if prior is not None else np.full(len(means), _DEVIATION)
    terms = _all_terms(table.synchronous, servers, workers, batch / unit_batch)
    inverse = inverse_covariance(servers, workers)
    found = solve(terms, np.log(step_s / unit_s), inverse, means, deviations)
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
    """Steps per second of the whole job; ``servers``, ``workers`` and ``batch`` broadcast.

    Args:
        params: The fitted model.
        servers: Parameter servers.
        workers: Workers.
        batch: Total batch size.
    """
    p, w, b = (np.asarray(x, dtype=np.float64) for x in (servers, workers, batch))
    step_s = _terms(params.synchronous, p, w, b) @ np.array(params.coefficients)
    if params.support:
        at = _support(params.support)
        left = kernel(p, w, at.servers, at.workers) @ at.weights
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
    inverse = inverse_covariance(servers, workers)
    return _Support(servers, workers, batch, inverse, inverse @ left)


def predict(params: ServerParams, x: Configuration) -> Interval:
    """Steps per second of the whole job in configuration ``x``."""
    value = float(speed(params, x.servers, x.replicas, x.batch))
    if params.support:
        return relative_interval(value, log_width(params, x.servers, x.replicas, x.batch))
    width = params.scatter * math.sqrt(1 + len(params.coefficients) / params.points)
    return relative_interval(value, width * t_quantile(params.points - len(params.coefficients)))


def log_width(params: ServerParams, servers: float, workers: float, batch: float) -> float:
    """Half-width of the 80% interval of the logarithm of speed, for params fitted by ``fit``.

    Args:
        params: The fitted model.
        servers: Parameter servers.
        workers: Workers.
        batch: Total batch size.
    """
    at, theta = _support(params.support), _theta(params)
    p, w, b = np.array([servers]), np.array([workers]), np.array([batch / params.unit_batch])
    slopes, _ = log_slopes(_all_terms(params.synchronous, p, w, b), theta)
    terms = _all_terms(params.synchronous, at.servers, at.workers, at.batch / params.unit_batch)
    at_slopes, _ = log_slopes(terms, theta)
    alike = kernel(p, w, at.servers, at.workers)[0]
    variance = log_variance(alike, at.inverse, slopes[0], at_slopes, np.array(params.deviations))
    freedom = params.points + ASSUMED_POINTS
    return params.scatter * math.sqrt(variance) * t_quantile(freedom)


#: Scatter of log times: one measurement; smooth part; by number of servers; by number of workers.
_NOISE, _SMOOTH, _BY_SERVERS, _BY_WORKERS = 0.035, 0.07, 0.08, 0.03
#: Distances in logarithms over which these are alike: smooth, of the like number, of the other one.
_LENGTH, _LIKE, _OTHER = 1.5, 0.25, 4.0
_VARIANCE = _SMOOTH**2 + _BY_SERVERS**2 + _BY_WORKERS**2
#: Points that the assumed scatter is worth when residuals judge it.
ASSUMED_POINTS = 3
_ITERATIONS, _TOLERANCE, _LONGEST = 40, 1e-7, 2.0


class ServerSolution(NamedTuple):
    """Logarithms of the coefficients, the residual at each point, and its scale."""

    theta: FloatArray
    left: FloatArray
    scale: float


def kernel(
    servers: FloatArray, workers: FloatArray, at_servers: FloatArray, at_workers: FloatArray
) -> FloatArray:
    """Covariance of the residual between configurations and the measured ones (new last axis).

    Args:
        servers: Servers of each configuration.
        workers: Workers of each configuration.
        at_servers: Servers of the measured configurations.
        at_workers: Workers of the measured configurations.
    """
    by_p = np.abs(np.log(servers)[..., None] - np.log(at_servers))
    by_w = np.abs(np.log(workers)[..., None] - np.log(at_workers))
    smooth = _SMOOTH**2 * np.exp(-(by_p + by_w) / _LENGTH)
    shards = _BY_SERVERS**2 * np.exp(-by_p / _LIKE - by_w / _OTHER)
    spread = _BY_WORKERS**2 * np.exp(-by_w / _LIKE - by_p / _OTHER)
    return np.asarray(smooth + shards + spread)


def inverse_covariance(servers: FloatArray, workers: FloatArray) -> FloatArray:
    """Inverse covariance C^-1 of the residual at measured configurations."""
    covariance = kernel(servers, workers, servers, workers) + _NOISE**2 * np.eye(len(servers))
    return np.asarray(np.linalg.inv(covariance))


def solve(
    terms: FloatArray, log_t: FloatArray, inverse: FloatArray, mean: FloatArray, deviation: FloatArray
) -> ServerSolution:
    """Fit by Levenberg-Marquardt, starting at the mean of the prior.

    Args:
        terms: Terms of the formula, a row per measured configuration.
        log_t: Logarithms of the measured times.
        inverse: Inverse covariance of the residual.
        mean: Mean of the prior on the logarithms of the coefficients.
        deviation: Standard deviation of that prior.
    """
    theta, damping = mean.copy(), 1e-2
    cost, gradient, hessian, left = _quadratic(terms, log_t, inverse, mean, deviation, theta)
    for _ in range(_ITERATIONS):
        damped = hessian + damping * np.diag(np.diag(hessian))
        tried = theta + np.clip(np.linalg.solve(damped, gradient), -_LONGEST, _LONGEST)
        new = _quadratic(terms, log_t, inverse, mean, deviation, tried)
        fell = cost - new[0]
        if fell > 0:
            theta, (cost, gradient, hessian, left) = tried, new
        damping *= 0.2 if fell > 0 else 5.0
        if abs(fell) <= _TOLERANCE * max(cost, 1.0):
            break
    # each point's error when predicted from the others, in units of its variance
    misfit = float(np.sum((inverse @ left) ** 2 / np.diag(inverse)))
    return ServerSolution(
        theta, left, float(np.sqrt((misfit + ASSUMED_POINTS) / (len(left) + ASSUMED_POINTS)))
    )


def _quadratic(
    terms: FloatArray,
    log_t: FloatArray,
    inverse: FloatArray,
    mean: FloatArray,
    deviation: FloatArray,
    theta: FloatArray,
) -> tuple[float, FloatArray, FloatArray, FloatArray]:
    slopes, log_model = log_slopes(terms, theta)
    left, off = log_t - log_model, (mean - theta) / deviation
    weighted = slopes.T @ inverse
    gradient = weighted @ left + off / deviation
    hessian = weighted @ slopes + np.diag(deviation**-2)
    return float(left @ inverse @ left + off @ off), gradient, hessian, left


def log_slopes(terms: FloatArray, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Derivatives of log T by the parameters, and log T."""
    parts = terms * np.exp(theta)
    total = parts.sum(axis=-1)
    return parts / total[..., None], np.log(total)


def log_variance(
    alike: FloatArray, inverse: FloatArray, slopes: FloatArray, at_slopes: FloatArray, deviation: FloatArray
) -> float:
    """Variance of log T at one configuration.

    Args:
        alike: Kernel of the configuration with the measured ones.
        inverse: Inverse covariance of the residual at the measured configurations.
        slopes: Derivatives of log T at the configuration.
        at_slopes: Derivatives of log T at the measured configurations.
        deviation: Standard deviation of the prior on the parameters.
    """
    through = alike @ inverse
    information = at_slopes.T @ inverse @ at_slopes + np.diag(deviation**-2)
    apart = slopes - through @ at_slopes
    return float(_VARIANCE + _NOISE**2 - through @ alike + apart @ np.linalg.solve(information, apart))
