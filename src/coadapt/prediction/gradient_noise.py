"""The gradient noise scale phi over progress and batch size, and the statistical efficiency that follows from it.

Statistical efficiency of a batch size: Pollux (OSDI 2021), section 3.1, after AdaScale and McCandlish et al.

    phi    = M0 var / sqr                                gradient noise scale, in examples
    gain   = (var + sqr) / (var / scale + sqr)           progress of one step at M, in steps at M0; scale = M / M0
    efficiency = gain / scale = (phi + M0) / (phi + M)   useful share of the examples, (0, 1] for M >= M0
    steps(M) = integral of d work / (M efficiency(M))    work in examples at M0

with sqr the squared norm of the true gradient and var the variance of its estimate at M0. Both are
estimates that noise may push below zero; they then count as zero. Where both vanish nothing is
known about the noise and a step counts as one step (gain 1), whatever its batch size.

phi is measured at the present batch size of the job, and rises with it. At batch size M

    d log phi / d log M = clip(GROWTH + SURPLUS log(phi / M), 0, 1)

(measured tasks: 0.1-0.4 where phi is near M, up to 1 far above it, where it no longer matters). Every
measurement is converted to the reference batch size by this rule, and every query to its own batch size. Over
progress, log phi is a straight line in log work, with a prior for its slope and a residual that follows the
measurements; beyond them the line continues and the interval widens.

``efficiency`` and ``gain`` apply the formulas to given gradient statistics; ``observe``, ``fit`` and ``predict`` are the
predictor of phi.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from coadapt.model import Fact, Measurement
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, t_quantile

#: (grad_sqr, grad_var) before the first report: larger batches bring nothing.
UNKNOWN = (0.0, 0.0)


def noise_scale(grad_sqr: float, grad_var: float, initial_batch: float) -> float:
    """Gradient noise scale phi in examples; infinite where the gradient is nothing but noise."""
    sqr, var = max(grad_sqr, 0.0), max(grad_var, 0.0)
    if var == 0.0:
        return 0.0
    return initial_batch * var / sqr if sqr > 0 else math.inf


@overload
def efficiency(grad_sqr: float, grad_var: float, scale: float) -> float: ...
@overload
def efficiency(grad_sqr: float, grad_var: float, scale: FloatArray) -> FloatArray: ...
def efficiency(grad_sqr: float, grad_var: float, scale: float | FloatArray) -> float | FloatArray:
    """Useful share of each example at ``scale`` = batch / M0; a number, or an array of them."""
    sqr, var = max(grad_sqr, 0.0), max(grad_var, 0.0)
    total = var + sqr
    if total == 0.0:
        return 1.0 / scale
    # this form, not gain / scale: it cannot exceed 1 by rounding
    return total / (var + sqr * scale)


@overload
def gain(grad_sqr: float, grad_var: float, scale: float) -> float: ...
@overload
def gain(grad_sqr: float, grad_var: float, scale: FloatArray) -> FloatArray: ...
def gain(grad_sqr: float, grad_var: float, scale: float | FloatArray) -> float | FloatArray:
    """Progress of one step at ``scale`` = batch / M0, in steps at the reference batch size M0."""
    sqr, var = max(grad_sqr, 0.0), max(grad_var, 0.0)
    total = var + sqr
    if total == 0.0:
        return scale * 0.0 + 1.0
    return total / (var / scale + sqr)


#: Chosen on the tasks bert, cifar10 and imagenet of Pollux.
GROWTH, SURPLUS, GROWTH_DEVIATION = 0.12, 0.07, 0.1
#: Neighbours are averaged above this number of points.
MAX_POINTS = 64
#: log phi over log work: slope and its deviation; what is left over, over which distance; one measurement.
_SLOPE, _SLOPE_DEVIATION = 0.4, 0.4
_RESIDUAL, _LENGTH, _NOISE = 0.5, 0.7, 0.15
#: Deviation between one run and the next, at any batch size, of log phi; and of the number of steps, at least.
_RUN, _LEAST = 0.25, 0.003
#: Deviation of the level before the first measurement: none at all is known.
_LEVEL = 10.0
_ASSUMED_POINTS = 4
#: Steps in which phi is carried to other batch sizes, in logarithms.
_STRIDE = math.log(2) / 2
#: Stretches of equal work into which a run is cut.
_STRETCHES = 100


class NoiseTable(Fact, frozen=True):
    """(log work, log phi at M0, log batch it was measured at), in order of work."""

    initial_batch: float
    points: tuple[tuple[float, float, float], ...] = ()


class NoiseParams(Fact, frozen=True):
    """The table's points as fitted, and how far they stray in units of what was assumed."""

    initial_batch: float
    support: tuple[tuple[float, float, float], ...]
    scale: float


def observe(table: NoiseTable, measurement: Measurement) -> NoiseTable:
    """The table with the reported noise scale; the same object if there is none, or it is not a number."""
    m = measurement
    if m.grad_sqr is None or m.grad_var is None or not (m.work and 0 < m.work < math.inf):
        return table
    phi = noise_scale(m.grad_sqr, m.grad_var, table.initial_batch)
    if not 0 < phi < math.inf:
        return table
    at_initial = carried(math.log(phi), m.config.batch, table.initial_batch)
    point = (math.log(m.work), float(at_initial), math.log(m.config.batch))
    at = bisect_left(table.points, point)
    if at < len(table.points) and table.points[at] == point:
        return table
    points = (*table.points[:at], point, *table.points[at:])
    return NoiseTable(initial_batch=table.initial_batch, points=_thinned(points))


def _thinned(points: tuple[tuple[float, float, float], ...]) -> tuple[tuple[float, float, float], ...]:
    if len(points) <= MAX_POINTS:
        return points
    pairs = np.array(points[: len(points) // 2 * 2]).reshape(-1, 2, 3).mean(axis=1)
    return (*map(tuple, pairs.tolist()), *points[len(pairs) * 2 :])


def carried(log_phi: float | FloatArray, batch: float, to: float) -> FloatArray:
    """log phi at batch size ``to``, measured at ``batch``; in steps of at most a factor sqrt 2."""
    steps = max(math.ceil(2 * abs(math.log2(to / batch))), 1)
    stride, log_batch = math.log(to / batch) / steps, math.log(batch)
    there = np.asarray(log_phi, dtype=np.float64)
    for _ in range(steps):
        there = there + stride * np.clip(GROWTH + SURPLUS * (there - log_batch), 0.0, 1.0)
        log_batch += stride
    return there


def efficiency_over(
    grad_sqr: float, grad_var: float, initial_batch: float, measured_at: float, batch: npt.ArrayLike
) -> FloatArray:
    """Useful share of the examples at batch sizes other than the one of the gradient statistics.

    Args:
        grad_sqr: Squared norm of the true gradient.
        grad_var: Variance of its estimate at ``initial_batch``.
        initial_batch: The reference batch size M0.
        measured_at: Batch size at which the statistics were measured.
        batch: Batch sizes to answer for; phi is converted to each of them.
    """
    batch = np.asarray(batch, dtype=np.float64)
    phi = noise_scale(grad_sqr, grad_var, initial_batch)
    if not 0 < phi < math.inf or not batch.size:
        return np.asarray(efficiency(grad_sqr, grad_var, batch / initial_batch))
    least, most = min(float(batch.min()), measured_at), max(float(batch.max()), measured_at)
    log_batch, log_phi = _carried_over(math.log(phi), measured_at, least, most)
    there = np.exp(np.interp(np.log(batch), log_batch, log_phi))
    return np.asarray((there + initial_batch) / (there + batch))


def later_phi(phi: float, done: float, left: float, work: float) -> float:
    """phi at a later time of the run, extrapolated with the usual slope.

    Args:
        phi: The noise scale at present.
        done: Work done so far.
        left: Work left.
        work: Total work done at the later time.
    """
    # what was done in the first hundredth says nothing about a slope yet
    begun = max(done, 0.01 * (done + left))
    return float(phi * (max(work, begun) / begun) ** _SLOPE)


def efficiencies_over(
    grads: Sequence[tuple[float, float, float]],
    initial_batch: FloatArray,
    batch: FloatArray,
    log_batch: FloatArray,
    most: FloatArray,
    *,
    carry: npt.NDArray[np.bool_],
) -> FloatArray:
    """``efficiency_over`` of many jobs at once: rows are jobs, columns their batch sizes.

    phi is converted along a grid from the reference batch size to ``most``, so that the answer for one batch size does
    not depend on which others are asked for.

    Args:
        grads: (grad_sqr, grad_var, batch size of the measurement) of each job.
        initial_batch: Reference batch size M0 of each job.
        batch: Batch sizes to answer for.
        log_batch: Logarithms of ``batch``.
        most: Largest batch size of each job.
        carry: Whether phi of a job is converted to other batch sizes, or used as measured.
    """
    sqr, var, measured_at = np.maximum(np.array(grads, dtype=np.float64), 0.0).T
    known = (sqr > 0) & (var > 0)
    log_phi = np.log(np.where(known, initial_batch * var / np.where(known, sqr, 1.0), 1.0))
    start = np.log(initial_batch)
    # as many strides as any job needs: what lies beyond a job's own changes nothing for it
    log_at = np.log(measured_at)
    furthest = float((np.maximum(np.log(most), log_at) - start).max(initial=0.0))
    strides = max(math.ceil(furthest / _STRIDE + 1e-9), 1)
    there = _carried_from(log_phi, log_at, start, strides, carry)
    place = np.maximum(log_batch - start[:, None], 0.0) / _STRIDE
    at = np.minimum(place.astype(np.int_), strides - 1)
    rows = np.arange(len(grads))[:, None]
    low, high = there[rows, at], there[rows, at + 1]
    phi = np.exp(low + (high - low) * (place - at))
    useful = (phi + initial_batch[:, None]) / (phi + batch)
    for row in np.flatnonzero(~known).tolist():
        useful[row] = efficiency(grads[row][0], grads[row][1], batch[row] / initial_batch[row])
    return np.asarray(useful)


def _carried_from(
    log_phi: FloatArray,
    log_at: FloatArray,
    start: FloatArray,
    strides: int,
    carry: npt.NDArray[np.bool_],
) -> FloatArray:
    """log phi of each job at each point of its grid, carried there from where it was measured (or as it is)."""
    there = np.repeat(log_phi[None], strides + 1, axis=0)
    # rates of growth between 0 and 1, in as few operations as possible: a decision carries every job over its grid
    least, most = np.zeros(len(log_phi)), carry.astype(np.float64)
    for points, further in ((range(strides + 1), np.maximum), (range(strides, -1, -1), np.minimum)):
        here, level = log_at, log_phi
        for point in points:
            on = further(start + point * _STRIDE, here)
            growth = np.minimum(np.maximum(GROWTH + SURPLUS * (level - here), least), most)
            level = level + (on - here) * growth
            there[point] = np.where(on != here, level, there[point])
            here = on
    return there.T


@lru_cache(maxsize=8192)
def _carried_over(
    log_phi: float, measured_at: float, least: float, most: float
) -> tuple[FloatArray, FloatArray]:
    """(log batch, log phi) on a grid with the batch size that was measured in it."""
    start = math.log(measured_at)
    sides = []
    for end in (math.log(least), math.log(most)):
        steps = max(math.ceil(abs(end - start) / _STRIDE), 1)
        stride, here, there = (end - start) / steps, start, log_phi
        side = []
        for _ in range(steps):
            there += stride * min(max(GROWTH + SURPLUS * (there - here), 0.0), 1.0)
            here += stride
            side.append((here, there))
        sides.append(side)
    grid = np.array([*reversed(sides[0]), (start, log_phi), *sides[1]])
    return grid[:, 0], grid[:, 1]


def fit(table: NoiseTable, prior: NoiseParams | None = None) -> NoiseParams | None:
    """Fit phi to the measurements in ``table``; ``prior`` before the first measurement."""
    if not table.points:
        return prior
    known = _known(table.points)
    misfit = float(np.sum(known.weights**2 / np.diag(known.inverse)))
    scale = math.sqrt((misfit + _ASSUMED_POINTS) / (len(table.points) + _ASSUMED_POINTS))
    return NoiseParams(initial_batch=table.initial_batch, support=table.points, scale=scale)


class _Known(NamedTuple):
    log_work: FloatArray
    centre: tuple[float, float]
    inverse: FloatArray
    weights: FloatArray


@lru_cache(maxsize=1024)
def _known(points: tuple[tuple[float, float, float], ...]) -> _Known:
    log_work, log_phi, _ = np.array(points).T
    centre = float(log_work.mean()), float(log_phi.mean())
    covariance = _covariance(log_work, log_work, centre[0]) + _NOISE**2 * np.eye(len(log_work))
    inverse = np.linalg.inv(covariance).astype(np.float64)
    left = log_phi - centre[1] - _SLOPE * (log_work - centre[0])
    return _Known(log_work, centre, inverse, inverse @ left)


def _covariance(one: FloatArray, other: FloatArray, centre: float) -> FloatArray:
    residual = _RESIDUAL**2 * np.exp(-np.abs(one[:, None] - other) / _LENGTH)
    slope = _SLOPE_DEVIATION**2 * (one[:, None] - centre) * (other - centre)
    return np.asarray(_LEVEL**2 + slope + residual)


def log_phi(params: NoiseParams, work: FloatArray, batch: float) -> tuple[FloatArray, FloatArray]:
    """log phi at each ``work`` (examples) at a batch size, and its standard deviation."""
    known, at = _known(params.support), np.log(work)
    alike = _covariance(at, known.log_work, known.centre[0])
    level = known.centre[1] + _SLOPE * (at - known.centre[0]) + alike @ known.weights
    own = _LEVEL**2 + (_SLOPE_DEVIATION * (at - known.centre[0])) ** 2 + _RESIDUAL**2
    variance = np.maximum(own - np.einsum("ij,jk,ik->i", alike, known.inverse, alike), 0.0)
    measured_at = float(np.mean([point[2] for point in params.support]))
    growth = GROWTH_DEVIATION * (math.log(batch) - measured_at)
    deviation = np.sqrt(params.scale**2 * variance + growth**2 + _RUN**2)
    return carried(level, params.initial_batch, batch), np.asarray(deviation)


def predict(params: NoiseParams, x: tuple[float, float]) -> Interval:
    """phi in examples at ``x`` = (work done, total batch size)."""
    work, batch = x
    level, deviation = log_phi(params, np.array([work]), batch)
    width = _quantile(params) * float(deviation[0])
    value = float(level[0])
    return Interval(value=math.exp(value), low=math.exp(value - width), high=math.exp(value + width))


def steps(params: NoiseParams, batch: float, until: float, *, since: float = 0.0) -> Interval:
    """Optimizer steps at a total batch size from one amount of work (examples) to another.

    Args:
        params: The fitted noise scale.
        batch: Total batch size.
        until: Work at the end.
        since: Work at the beginning.
    """
    edges = np.linspace(since, until, _STRETCHES + 1)
    level, deviation = log_phi(params, (edges[1:] + edges[:-1]) / 2, batch)
    width = _quantile(params) * deviation
    value, high, low = (
        _steps(params, np.diff(edges), np.exp(phi), batch) for phi in (level, level - width, level + width)
    )
    # for a batch below the reference size a noisier gradient means more steps, not fewer
    least = 1 + _LEAST
    return Interval(value=value, low=min(low, high) / least, high=max(low, high) * least)


def _steps(params: NoiseParams, work: FloatArray, phi: FloatArray, batch: float) -> float:
    useful = (phi + params.initial_batch) / (phi + batch)
    return float(np.sum(work / (batch * useful)))


def _quantile(params: NoiseParams) -> float:
    return t_quantile(len(params.support) + _ASSUMED_POINTS)
