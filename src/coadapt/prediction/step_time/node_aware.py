"""Our step-time model: the formula of ``formula`` times a learned residual, fitted for all stale jobs at once.

    T(n, K, m, s) = s T_grad + T_step,    each times exp(k(x)' C^-1 residual)

k(x) is the similarity of x to the measured configurations, C that of these among each other with their noise.
The interval is that of the linearised model, parameters and residual together (universal kriging):

    var log T = RESIDUAL^2 - k' C^-1 k + NOISE^2 + d' S d,   d = J(x) - k' C^-1 J,  S = (J' C^-1 J + prior)^-1

scaled by how far residuals differ from what was assumed, and widened beyond the largest job measured. With
fewer points than parameters S is nearly the prior: the interval is wide, and ``assumed`` says what was not measured.

**Fit.** All stale jobs are fitted at once:

    minimise  r_step' C^-1 r_step + r_grad' C^-1 r_grad + sum ((theta - mean) / deviation)^2

with r the differences of log times, C = residual kernel + noise: similar points count as one, so that forty
batch sizes on one shape do not outvote three shapes. C does not depend on the parameters; it is factored
once and whitens both residuals, and Levenberg-Marquardt with the exact Jacobian does the rest, vectorised
over jobs. Each job is padded to its own size and stops independently, so that its result does not depend, to
the last bit, on the other jobs of the fit: a replay must give the same result whichever jobs were stale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Configuration
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, Singles, relative_interval, t_quantile
from coadapt.prediction.step_time._base import FittedStepTime, StepTimeModel
from coadapt.prediction.step_time.formula import (
    DEVIATIONS,
    GAMMA,
    MEANS,
    NODE_LEVELS,
    NOISE,
    RESIDUAL,
    batch_kernel,
    batch_powers,
    derivatives,
    log_times,
    node_level,
    place_coordinates,
    place_kernel,
    place_times,
    sync_terms,
)
from coadapt.prediction.step_time.pollux import kind
from coadapt.prediction.step_time.step_table import Point

#: Points that the assumed noise is worth when the scale of residuals is judged.
_ASSUMED_POINTS = 3
#: Added scatter of log times per doubling of replicas beyond the most that were measured.
_DOUBLING_SCATTER = 0.07


class AwareParams(FittedStepTime, frozen=True):
    """Fitted parameters (logarithms; seconds, examples), and the points behind them."""

    theta: tuple[float, ...]
    #: nodes, replicas, batch, left over of log step time, of log compute time
    support: tuple[tuple[float, float, float, float, float], ...]
    #: Scatter of residuals in units of the assumed one.
    scale: float = 1.0
    #: Configurations fitted: one replica, one node, several nodes.
    points: tuple[int, int, int] = (0, 0, 0)
    max_replicas: int = 1
    #: Fitted around the parameters of a similar job.
    informed: bool = False

    def assumed(self) -> tuple[str, ...]:
        """Description of what was not measured and rests on the prior; empty if everything was measured."""
        batches, nodes = {row[2] for row in self.support}, {row[0] for row in self.support}
        missing = {
            "how time grows with the batch size": len(batches) < 2,
            "synchronisation inside a node": not self.points[1],
            "synchronisation between nodes": not self.points[2],
            "two nodes": 2 not in nodes,
            "three or more nodes": max(nodes, default=0) < 3,
        }
        return tuple(what for what, lacks in missing.items() if lacks)

    def step_time(
        self,
        nodes: npt.ArrayLike,
        replicas: npt.ArrayLike,
        atomic: npt.ArrayLike,
        accumulation: npt.ArrayLike = 0,
    ) -> FloatArray:
        """Seconds of one step of ``replicas`` on ``nodes``, ``atomic`` examples per GPU, ``accumulation`` extra passes."""
        grad, step = times(self, nodes, replicas, atomic)
        return np.asarray(np.asarray(accumulation) * grad + step)

    def grad_time(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, atomic: npt.ArrayLike) -> FloatArray:
        """See ``FittedStepTime``."""
        return times(self, nodes, replicas, atomic)[0]

    def predict(self, x: Configuration) -> Interval:
        """See ``FittedStepTime``."""
        value = float(self.step_time(x.nodes, x.replicas, x.atomic_batch, x.accumulation))
        at = np.array([[x.nodes, x.replicas, x.atomic_batch]], dtype=np.float64)
        return relative_interval(value, float(log_widths(self, at)[0]))

    def projected(self, ratio: float, scatter: float) -> AwareParams:
        """All coefficients divided by ``ratio``; the overlap stays."""
        shift = math.log(ratio)
        theta = tuple(value - shift if i < GAMMA else value for i, value in enumerate(self.theta))
        return replace(self, theta=theta, scale=math.hypot(self.scale, scatter / RESIDUAL))

    def distinct_nodes(self, nodes: npt.ArrayLike) -> npt.NDArray[np.int_]:
        """See ``FittedStepTime``."""
        return node_level(nodes)

    def node_counts(self) -> npt.NDArray[np.int_]:
        """See ``FittedStepTime``."""
        return NODE_LEVELS

    def batch_group(self) -> int:
        """Points behind the parameters, rounded up: a sum's rounding depends on its length."""
        return -(-len(self.support) // 8) * 8

    @classmethod
    def batch_terms(cls, atomic: npt.NDArray[np.int_]) -> Singles:
        """``batch_powers`` of the batch sizes."""
        return batch_powers(atomic).astype(np.float32)

    @classmethod
    def times_many(
        cls,
        jobs: Sequence[FittedStepTime],
        atomic: Singles,
        terms: Singles,
        nodes: npt.NDArray[np.int_],
        replicas: npt.NDArray[np.int_],
    ) -> tuple[Singles, Singles]:
        """Pass and step times of all ``jobs`` for ``atomic`` (and its ``terms``) at places of ``nodes`` and ``replicas``.

        See ``FittedStepTime``. In single precision, and long axes last: most of a decision's time goes into this.
        """
        params = cast("Sequence[AwareParams]", jobs)
        theta = np.array([one.theta for one in params], dtype=np.float32)
        grad_log, step_log = place_times(theta, sync_terms(nodes, replicas).astype(np.float32), atomic)
        known = np.ones((len(params), 6, params[0].batch_group(), 1), dtype=np.float32)
        known[:, 4:] = 0.0
        for row, one in enumerate(params):
            support = _support(one.support).short
            known[row, :, : support.shape[1], 0] = support
        kind, by_nodes, by_replicas, batch, *weights = known.transpose(1, 0, 2, 3)
        here = place_coordinates(nodes, replicas).astype(np.float32)
        apart = np.abs(by_nodes - here[1]) + np.abs(by_replicas - here[2])
        places = (kind == here[0]) * np.exp(-apart)
        # exp(-|log a - log b|) is the smaller of a / b and b / a
        alike = terms[:, None] / batch[..., None]
        alike = np.minimum(alike, 1 / alike, out=alike)
        step_left, grad_left = (np.einsum("jsco,jso->jco", alike, places * each) for each in weights)
        return np.exp(grad_log + grad_left), np.exp(step_log + step_left)


class NodeAwareModel(StepTimeModel):
    """All stale jobs are fitted at once; a projection from another GPU type is leant on beside measurements."""

    name = "node-aware"
    order = 10
    fits_together = True

    def usable_prior(self, prior: FittedStepTime | None) -> FittedStepTime | None:
        """``prior`` if this model fitted it, else None."""
        return prior if isinstance(prior, AwareParams) else None

    def fit_points(
        self, jobs: Sequence[tuple[Point, ...]], priors: Sequence[FittedStepTime | None]
    ) -> list[FittedStepTime]:
        """See ``StepTimeModel``."""
        return [*fit_points_many(jobs, cast("Sequence[AwareParams | None]", priors))]


def fit_points_many(
    jobs: Sequence[tuple[Point, ...]], priors: Sequence[AwareParams | None]
) -> list[AwareParams]:
    """Parameters of each job, at least one point each, all fitted at once."""
    around = [None if prior is None else np.array(prior.theta) for prior in priors]
    return [
        _params(points, solution.theta, solution.support, solution.misfit, informed=prior is not None)
        for points, solution, prior in zip(jobs, solve_many(jobs, around), priors, strict=True)
    ]


def _params(
    points: tuple[Point, ...], theta: FloatArray, support: FloatArray, misfit: float, *, informed: bool
) -> AwareParams:
    kinds = [kind(point[0], point[1]) for point in points]
    rows = tuple(map(tuple, support.tolist()))
    _support(rows)  # belongs to the fit, although it is not written down: no question shall wait for it
    return AwareParams(
        theta=tuple(theta.tolist()),
        support=rows,
        scale=math.sqrt((misfit + _ASSUMED_POINTS) / (len(support) + _ASSUMED_POINTS)),
        points=(kinds.count(0), kinds.count(1), kinds.count(2)),
        max_replicas=max(point[1] for point in points),
        informed=informed,
    )


class _Support(NamedTuple):
    """Values that predictions derive from the points once and cache."""

    nodes: FloatArray
    replicas: FloatArray
    batch: FloatArray
    inverse: FloatArray
    step_weights: FloatArray
    grad_weights: FloatArray
    #: ``place_coordinates``, ``batch_powers`` and both weights, a row each; once more in short numbers
    coordinates: FloatArray
    short: npt.NDArray[np.float32]


@lru_cache(maxsize=32768)
def _support(rows: tuple[tuple[float, ...], ...]) -> _Support:
    nodes, replicas, batch, step_left, grad_left = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    likeness = place_kernel(nodes, replicas, nodes, replicas) * batch_kernel(batch, batch)
    covariance = RESIDUAL**2 * likeness + NOISE**2 * np.eye(len(nodes))
    inverse = np.linalg.inv(covariance).astype(np.float64)
    weights = RESIDUAL**2 * (inverse @ np.stack([step_left, grad_left], axis=1))
    on_step, on_grad = weights.T
    coordinates = np.stack([*place_coordinates(nodes, replicas), batch_powers(batch), on_step, on_grad])
    short = coordinates.astype(np.float32)
    return _Support(nodes, replicas, batch, inverse, on_step, on_grad, coordinates, short)


def times(
    params: AwareParams, nodes: npt.ArrayLike, replicas: npt.ArrayLike, atomic: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Seconds of one backward pass and of one step without accumulation; arguments broadcast.

    Args:
        params: The fit.
        nodes: Number of nodes.
        replicas: Number of replicas.
        atomic: Examples per GPU and backward pass.
    """
    nodes, replicas, atomic = np.asarray(nodes), np.asarray(replicas), np.asarray(atomic, dtype=np.float64)
    shape = np.broadcast_shapes(nodes.shape, replicas.shape, atomic.shape)
    if nodes.size == 1 and replicas.size == 1:
        return _times_at(params, int(nodes.flat[0]), int(replicas.flat[0]), np.broadcast_to(atomic, shape))
    logs = log_times(np.array(params.theta), sync_terms(nodes, replicas), atomic)
    support = _support(params.support)
    places = place_kernel(nodes, replicas, support.nodes, support.replicas)
    batches = batch_kernel(atomic, support.batch)
    # places and batches keep their own shapes until here: the product over a whole grid is the costly part
    step_left = np.einsum("...i,...i->...", places * support.step_weights, batches)
    grad_left = np.einsum("...i,...i->...", places * support.grad_weights, batches)
    grad, step = np.exp(logs.grad + grad_left), np.exp(logs.step + step_left)
    # a single point comes back with an axis of one
    return np.broadcast_to(grad, shape or grad.shape).reshape(shape), step.reshape(shape)


def _times_at(
    params: AwareParams, nodes: int, replicas: int, atomic: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """``times`` at one place, what agents ask after every report: nothing is computed that depends on the place alone."""
    terms, (kind_here, by_nodes, by_replicas) = _place(nodes, replicas)
    logs = log_times(np.array(params.theta), terms, atomic)
    kinds, nodes_of, replicas_of, powers, *weights = _support(params.support).coordinates
    alike = (kinds == kind_here) * np.exp(-np.abs(nodes_of - by_nodes) - np.abs(replicas_of - by_replicas))
    ratio = batch_powers(atomic)[..., None] / powers
    left = np.minimum(ratio, 1 / ratio) @ (alike * np.stack(weights)).T
    grad, step = np.exp(logs.grad + left[..., 1]), np.exp(logs.step + left[..., 0])
    # a single point comes back with an axis of one
    return grad.reshape(atomic.shape), step.reshape(atomic.shape)


@lru_cache(maxsize=4096)
def _place(nodes: int, replicas: int) -> tuple[FloatArray, tuple[float, float, float]]:
    kind_here, by_nodes, by_replicas = place_coordinates(nodes, replicas).tolist()
    return sync_terms(nodes, replicas), (kind_here, by_nodes, by_replicas)


def log_widths(params: AwareParams, at: FloatArray) -> FloatArray:
    """Half-widths of the intervals of log step time; ``at`` has a row (nodes, replicas, batch) per question."""
    support = _support(params.support)
    nodes, replicas, batch = at.T
    alike = place_kernel(nodes, replicas, support.nodes, support.replicas)
    alike = RESIDUAL**2 * alike * batch_kernel(batch, support.batch)
    through = alike @ support.inverse
    slopes, spread = _parameters(params)
    apart = _slopes(params, nodes, replicas, batch) - through @ slopes
    variance = RESIDUAL**2 + NOISE**2 - np.einsum("ij,ij->i", through, alike)
    variance += np.einsum("ij,jk,ik->i", apart, spread, apart)
    doublings = np.log2(np.maximum(replicas / params.max_replicas, 1))
    width = np.sqrt(params.scale**2 * variance + (_DOUBLING_SCATTER * doublings) ** 2)
    return np.asarray(width * t_quantile(_ASSUMED_POINTS + sum(params.points)))


@lru_cache(maxsize=1024)
def _parameters(params: AwareParams) -> tuple[FloatArray, FloatArray]:
    """J at the support, and the covariance S of the parameters."""
    support = _support(params.support)
    slopes = _slopes(params, support.nodes, support.replicas, support.batch)
    deviation = DEVIATIONS * (PRIOR_SHARE if params.informed else 1.0)
    theta = np.array(params.theta)
    terms = sync_terms(support.nodes, support.replicas)
    _, by_grad = derivatives(theta, terms, support.batch, log_times(theta, terms, support.batch))
    information = slopes.T @ support.inverse @ slopes + by_grad.T @ support.inverse @ by_grad
    return slopes, np.linalg.inv(information + np.diag(deviation**-2)).astype(np.float64)


def _slopes(params: AwareParams, nodes: FloatArray, replicas: FloatArray, batch: FloatArray) -> FloatArray:
    theta, terms = np.array(params.theta), sync_terms(nodes, replicas)
    return derivatives(theta, terms, batch, log_times(theta, terms, batch))[0]


#: Above this number of configurations neighbours in batch size are merged: more cost time and add nothing.
MAX_POINTS = 512
#: Deviations shrink to this share around another job's parameters.
PRIOR_SHARE = 0.5
_ITERATIONS, _TOLERANCE, _LONGEST = 25, 1e-5, 2.0
_LEAST_SIZE = 8


class Solution(NamedTuple):
    """Parameters in seconds and examples, the points they were fitted to, and the residuals there."""

    theta: FloatArray
    #: nodes, replicas, batch, left over of log step time, of log compute time
    support: FloatArray
    #: Squares of each point's error when predicted from the others, in units of its variance, summed: about one
    #: per point if the noise is as assumed.
    misfit: float


class _Problem(NamedTuple):
    """Jobs of one padded size: arrays by job, point."""

    terms: FloatArray
    batch: FloatArray
    log_step: FloatArray
    log_grad: FloatArray
    #: 1 where the compute time is known, else 0.
    grad_known: FloatArray
    whiten: FloatArray
    mean: FloatArray
    deviation: FloatArray


def solve_many(
    jobs: Sequence[Sequence[Point]], priors: Sequence[FloatArray | None] | None = None
) -> list[Solution]:
    """The parameters of each job (at least one point each); ``priors`` are parameters of similar jobs."""
    tables = [thinned(np.array(points, dtype=np.float64)) for points in jobs]
    around = priors or [None] * len(tables)
    by_size: dict[int, list[int]] = {}
    for index, table in enumerate(tables):
        by_size.setdefault(_padded(len(table)), []).append(index)
    found: dict[int, Solution] = {}
    for size, members in by_size.items():
        solved = _solve(size, [tables[i] for i in members], [around[i] for i in members])
        found.update(zip(members, solved, strict=True))
    return [found[i] for i in range(len(tables))]


def _padded(points: int) -> int:
    size = _LEAST_SIZE
    while size < points:
        size *= 2
    return size


def thinned(table: FloatArray) -> FloatArray:
    """At most MAX_POINTS rows: neighbours in batch size on one shape become their geometric mean."""
    order = np.lexsort((table[:, 2], table[:, 1], table[:, 0]))
    table = table[order]
    while len(table) > MAX_POINTS:
        changes = np.any(np.diff(table[:, :2], axis=0) != 0, axis=1)
        shape = np.concatenate([[0], np.cumsum(changes)])
        first = np.concatenate([[0], np.flatnonzero(changes) + 1])[shape]
        # the second of each pair joins the first; where every shape has one batch size left, shapes join
        pair = np.arange(len(table)) - first if shape[-1] + 1 < len(table) else np.arange(len(table))
        group = np.cumsum(pair % 2 == 0) - 1
        counts = np.bincount(group)
        logs = [np.bincount(group, np.log(column)) / counts for column in table.T]
        table = np.exp(np.stack(logs, axis=1))
        table[:, :2] = np.maximum(np.rint(table[:, :2]), 1)
    return table


def _solve(size: int, tables: list[FloatArray], priors: list[FloatArray | None]) -> list[Solution]:
    data = np.ones((len(tables), size, 5))
    real = np.zeros((len(tables), size), dtype=bool)
    for job, table in enumerate(tables):
        data[job, : len(table)], real[job, : len(table)] = table, True
    units = np.array([np.exp(np.log(table[:, 2:4]).mean(axis=0)) for table in tables])
    shift = _shift(units)
    problem = _problem(data, real, units)
    for job, prior in enumerate(priors):
        if prior is not None:
            problem.mean[job] = prior - shift[job]
            problem.deviation[job] *= PRIOR_SHARE
    theta = _descend(problem)
    logs = log_times(theta, problem.terms, problem.batch)
    left_step = problem.log_step - logs.step
    left_grad = (problem.log_grad - logs.grad) * problem.grad_known
    misfit = _left_out(problem.whiten, left_step)
    return [
        Solution(
            theta[job] + shift[job],
            np.column_stack([table[:, :3], left_step[job, : len(table)], left_grad[job, : len(table)]]),
            float(misfit[job]),
        )
        for job, table in enumerate(tables)
    ]


def _left_out(whiten: FloatArray, left: FloatArray) -> FloatArray:
    """With C^-1 = W'W, point i predicted from the others errs by (C^-1 r)_i / (C^-1)_ii, variance 1 / (C^-1)_ii."""
    weights = (np.swapaxes(whiten, 1, 2) @ (whiten @ left[..., None]))[..., 0]
    precision = np.square(whiten).sum(axis=1)
    return np.asarray((weights**2 / np.where(precision > 0, precision, 1.0)).sum(axis=-1))


def _shift(units: FloatArray) -> FloatArray:
    """Offsets from logarithms in units of the job (batch, time) to logarithms of seconds per example or step."""
    shift = np.zeros((len(units), len(MEANS)))
    shift[:, :-1] = np.log(units[:, 1:2])
    shift[:, 1] -= np.log(units[:, 0])
    return shift


def _problem(data: FloatArray, real: np.ndarray, units: FloatArray) -> _Problem:
    nodes, replicas, batch, grad_s, step_s = np.moveaxis(data, -1, 0)
    kernel = np.stack(
        [
            place_kernel(n, k, n, k) * batch_kernel(m, m)
            for n, k, m in zip(nodes, replicas, batch, strict=True)
        ]
    )
    kernel = RESIDUAL**2 * kernel + NOISE**2 * np.eye(data.shape[1])
    # what is padded weighs nothing: rows and columns of the whitening matrix are zero there
    both = real[:, :, None] & real[:, None, :]
    factor = np.linalg.cholesky(np.where(both, kernel, np.eye(data.shape[1])))
    whiten = np.where(both, np.linalg.inv(factor), 0.0)
    ones = np.ones((len(data), 1))
    return _Problem(
        terms=sync_terms(nodes, replicas),
        batch=batch / units[:, :1],
        log_step=np.log(step_s / units[:, 1:]),
        log_grad=np.log(grad_s / units[:, 1:]),
        # several replicas that never wait for each other: the agent does not measure synchronisation
        grad_known=1.0 - ((replicas > 1) & (grad_s >= step_s)),
        whiten=whiten,
        mean=ones * MEANS,
        deviation=ones * DEVIATIONS,
    )


def _descend(problem: _Problem) -> FloatArray:
    """Levenberg-Marquardt from the prior's mean; jobs that have arrived drop out."""
    theta = problem.mean.copy()
    cost, gradient, hessian = _quadratic(problem, theta)
    damping = np.full(len(theta), 1e-2)
    going = np.arange(len(theta))
    diagonal = np.arange(theta.shape[1])
    for _ in range(_ITERATIONS):
        part = _Problem(*(array[going] for array in problem))
        damped = hessian[going]
        damped[:, diagonal, diagonal] *= 1 + damping[going, None]
        step = np.linalg.solve(damped, gradient[going, :, None])[..., 0]
        tried = theta[going] + np.clip(step, -_LONGEST, _LONGEST)
        new_cost, new_gradient, new_hessian = _quadratic(part, tried)
        fell = cost[going] - new_cost
        better = fell > 0
        kept = going[better]
        arrived = np.abs(fell) <= _TOLERANCE * np.maximum(cost[going], 1.0)
        theta[kept], cost[kept] = tried[better], new_cost[better]
        gradient[kept], hessian[kept] = new_gradient[better], new_hessian[better]
        damping[going] = np.where(better, damping[going] / 5, damping[going] * 5)
        going = going[~arrived]
        if not len(going):
            break
    return theta


def _quadratic(problem: _Problem, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The sum of squares, minus half its gradient, and the Gauss-Newton Hessian."""
    logs = log_times(theta, problem.terms, problem.batch)
    by_step, by_grad = derivatives(theta, problem.terms, problem.batch, logs)
    by_grad *= problem.grad_known[..., None]
    left = np.stack(
        [problem.log_step - logs.step, (problem.log_grad - logs.grad) * problem.grad_known], axis=1
    )
    white = (problem.whiten[:, None] @ left[..., None])[..., 0]
    slopes = problem.whiten[:, None] @ np.stack([by_step, by_grad], axis=1)
    jobs, _, points, count = slopes.shape
    slopes, white = slopes.reshape(jobs, 2 * points, count), white.reshape(jobs, 2 * points)
    off = (problem.mean - theta) / problem.deviation
    turned = np.swapaxes(slopes, 1, 2)
    gradient = (turned @ white[..., None])[..., 0] + off / problem.deviation
    hessian = turned @ slopes
    diagonal = np.arange(count)
    hessian[:, diagonal, diagonal] += problem.deviation**-2
    return np.square(white).sum(axis=-1) + np.square(off).sum(axis=-1), gradient, hessian
