"""The fit of our step-time model: all stale jobs at once.

    minimise  r_step' C^-1 r_step + r_grad' C^-1 r_grad + sum ((theta - mean) / deviation)^2

with r the differences of log times, C = residual kernel + noise: points alike count as one, so that forty
batch sizes on one shape do not outvote three shapes. C does not depend on the parameters; it is factored
once and whitens both residuals, and Levenberg-Marquardt with the exact Jacobian does the rest, vectorised
over jobs. Each job is padded to a size of its own and stops on its own, so that its answer does not depend, to
the last bit, on the company it is fitted in: a replay must not see who else was stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coadapt.predict._base import FloatArray
from coadapt.predict.step_table import Point
from coadapt.predict.step_terms import (
    DEVIATIONS,
    MEANS,
    NOISE,
    RESIDUAL,
    batch_kernel,
    derivatives,
    log_times,
    place_kernel,
    sync_terms,
)

#: Above so many configurations neighbours in batch size are merged: more would cost and not tell.
MAX_POINTS = 512
#: Deviations shrink to this share around another job's parameters.
PRIOR_SHARE = 0.5
_ITERATIONS, _TOLERANCE, _LONGEST = 25, 1e-5, 2.0
_LEAST_SIZE = 8


class Solution(NamedTuple):
    """Parameters in seconds and examples, the points behind them and what is left over there."""

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
    """What turns logarithms in units of the job (batch, time) into those of seconds per example or step."""
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
