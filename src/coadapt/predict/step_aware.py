"""Our step-time model, fitted: formula of ``step_terms`` times what it leaves over, with an interval.

    T(n, K, m, s) = s T_grad + T_step,    each times exp(k(x)' C^-1 left over)

k(x) is the likeness of x to the configurations measured, C that of these among each other with their noise.
The interval is that of the linearised model, parameters and residual together (universal kriging):

    var log T = RESIDUAL^2 - k' C^-1 k + NOISE^2 + d' S d,   d = J(x) - k' C^-1 J,  S = (J' C^-1 J + prior)^-1

scaled by how far residuals differ from what was assumed, and widened beyond the largest job measured. With
fewer points than parameters S is nearly the prior: the interval is wide, and ``assumed`` says what was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.model import Configuration, Fact
from coadapt.predict._base import Estimate, FloatArray, relative_interval, t_quantile
from coadapt.predict.step_published import kind
from coadapt.predict.step_solve import PRIOR_SHARE, solve_many
from coadapt.predict.step_table import Point
from coadapt.predict.step_terms import (
    DEVIATIONS,
    NOISE,
    RESIDUAL,
    batch_kernel,
    batch_powers,
    derivatives,
    log_times,
    place_coordinates,
    place_kernel,
    place_times,
    sync_terms,
)

#: Points that the assumed noise is worth when the scale of residuals is judged.
_ASSUMED_POINTS = 3
#: Added scatter of log times per doubling of replicas beyond the most that were measured.
_DOUBLING_SCATTER = 0.07


class AwareParams(Fact, frozen=True):
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
        """What was never measured and rests on what is usual, in words; empty where all was."""
        batches, nodes = {row[2] for row in self.support}, {row[0] for row in self.support}
        missing = {
            "how time grows with the batch size": len(batches) < 2,
            "synchronisation inside a node": not self.points[1],
            "synchronisation between nodes": not self.points[2],
            "two nodes": 2 not in nodes,
            "three or more nodes": max(nodes, default=0) < 3,
        }
        return tuple(what for what, lacks in missing.items() if lacks)


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
    """What predictions need of the points, derived from params and kept."""

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
    """Seconds of one backward pass and of one step without accumulation; arguments broadcast."""
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


def padded(params: AwareParams) -> int:
    """Points behind the parameters, rounded up: jobs are evaluated together that round alike.

    A sum's rounding depends on its length, and an answer must not depend on which other jobs are asked.
    """
    return -(-len(params.support) // 8) * 8


def times_many(
    params: Sequence[AwareParams],
    atomic: npt.NDArray[np.float32],
    powers: npt.NDArray[np.float32],
    nodes: npt.NDArray[np.int_],
    replicas: npt.NDArray[np.int_],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """``times`` of many jobs (alike ``padded``) at ``atomic``: all arrays [job, candidate, place]; ``powers``: its
    ``batch_powers``. In single precision, and long axes last: this is what most of a decision's time goes into."""
    theta = np.array([one.theta for one in params], dtype=np.float32)
    grad_log, step_log = place_times(theta, sync_terms(nodes, replicas).astype(np.float32), atomic)
    known = np.ones((len(params), 6, padded(params[0]), 1), dtype=np.float32)
    known[:, 4:] = 0.0
    for row, one in enumerate(params):
        support = _support(one.support).short
        known[row, :, : support.shape[1], 0] = support
    kind, by_nodes, by_replicas, batch, *weights = known.transpose(1, 0, 2, 3)
    here = place_coordinates(nodes, replicas).astype(np.float32)
    apart = np.abs(by_nodes - here[1]) + np.abs(by_replicas - here[2])
    places = (kind == here[0]) * np.exp(-apart)
    # exp(-|log a - log b|) is the smaller of a / b and b / a
    alike = powers[:, None] / batch[..., None]
    alike = np.minimum(alike, 1 / alike, out=alike)
    step_left, grad_left = (np.einsum("jsco,jso->jco", alike, places * each) for each in weights)
    return np.exp(grad_log + grad_left), np.exp(step_log + step_left)


def step_time(
    params: AwareParams,
    nodes: npt.ArrayLike,
    replicas: npt.ArrayLike,
    atomic: npt.ArrayLike,
    accumulation: npt.ArrayLike = 0,
) -> FloatArray:
    """Seconds of one optimizer step, accumulation included; arguments broadcast."""
    grad, step = times(params, nodes, replicas, atomic)
    return np.asarray(np.asarray(accumulation) * grad + step)


def predict(params: AwareParams, x: Configuration) -> Estimate:
    """Seconds of one optimizer step in configuration ``x``."""
    value = float(step_time(params, x.nodes, x.replicas, x.atomic_batch, x.accumulation))
    at = np.array([[x.nodes, x.replicas, x.atomic_batch]], dtype=np.float64)
    return relative_interval(value, float(log_widths(params, at)[0]))


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
