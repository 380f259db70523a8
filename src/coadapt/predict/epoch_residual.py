"""What the step-time form leaves over, learned inside the sampled range: a Gaussian process on log time.

    k(x, x') = A^2 M(d(x, x')) + C^2 [same K and n] M(|ln m - ln m'| / l)      + noise^2 on the diagonal

M is Matern-5/2, d the distance in ln m, ln K and the class of nodes (one, two, more) over their lengths. The
second term: real tables have offsets of single worker counts (a node half filled, an odd ring), which
hold for all batch sizes and say nothing about the next count. Sizes and lengths are the mode under weak
log-normal priors, so that eight samples give no more than eight samples can.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize

from coadapt.model import Fact
from coadapt.predict._base import FloatArray

#: Prior of the logs of: A, lengths of ln m, ln K, class of nodes, noise, C, l. Chosen on bert, cifar10, imagenet.
_MEAN = np.log([0.05, 1.5, 0.7, 1.0, 0.02, 0.03, 1.5])
_SD = 0.7
_AMPLITUDE, _LENGTHS, _NOISE, _OFFSET, _OFFSET_LENGTH = 0, slice(1, 4), 4, 5, 6
#: Steps of the search; the mode is flat, and the tenth digit of a length is of no use.
_MAX_STEPS = 40
#: Bounds of the logs that only nonsense reaches: a search that steps beyond them overflows.
_FARTHEST = 7.0


class Residual(Fact, frozen=True):
    """Sampled points (ln m, ln K, class of nodes), what was left over there, and the seven logs."""

    points: tuple[tuple[float, float, float], ...]
    left: tuple[float, ...]
    logs: tuple[float, ...]


def fit_residual(points: FloatArray, left: FloatArray) -> Residual:
    """The process with its most probable sizes and lengths."""
    found = minimize(
        _Objective(points, left),
        _MEAN,
        jac=True,
        method="L-BFGS-B",
        bounds=[(middle - _FARTHEST, middle + _FARTHEST) for middle in _MEAN],
        options={"maxiter": _MAX_STEPS},
    )
    return conditioned(points, left, tuple(found.x.tolist()))


def conditioned(points: FloatArray, left: FloatArray, logs: tuple[float, ...]) -> Residual:
    """The process with given sizes and lengths."""
    return Residual(
        points=tuple((a, b, c) for a, b, c in points.tolist()), left=tuple(left.tolist()), logs=logs
    )


def mean_and_variance(process: Residual, points: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Expected residual at each point, its variance, noise included, and the weight of each sample in it (a row per point)."""
    at, factor, solved = _solved(process)
    logs = np.array(process.logs)
    cross = _kernel(points, at, logs)
    explained = solve_triangular(factor, cross.T, lower=True)
    alone = math.exp(2 * logs[_AMPLITUDE]) + math.exp(2 * logs[_OFFSET])
    variance = np.maximum(alone - (explained**2).sum(axis=0), 0.0) + math.exp(2 * logs[_NOISE])
    weights = solve_triangular(factor, explained, lower=True, trans="T").T
    return cross @ solved, variance, np.asarray(weights)


def cautious(logs: tuple[float, ...]) -> tuple[float, ...]:
    """Sizes no less than is usual: most samples have many workers, and how little single counts differ there says little of the first ones."""
    least = np.full(len(_MEAN), -np.inf)
    least[[_AMPLITUDE, _OFFSET]] = _MEAN[[_AMPLITUDE, _OFFSET]]
    return tuple(np.maximum(logs, least).tolist())


def factor_of(process: Residual) -> FloatArray:
    """Lower Cholesky factor of the covariance of the samples."""
    return _solved(process)[1]


@lru_cache(maxsize=64)
def _solved(process: Residual) -> tuple[FloatArray, FloatArray, FloatArray]:
    points, left, logs = np.array(process.points), np.array(process.left), np.array(process.logs)
    covariance = _kernel(points, points, logs) + math.exp(2 * logs[_NOISE]) * np.eye(len(points))
    factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    return points, factor, np.asarray(cho_solve((factor, True), left), dtype=np.float64)


def _matern(r: FloatArray) -> FloatArray:
    u = math.sqrt(5) * r
    return np.asarray((1 + u + u * u / 3) * np.exp(-u))


def _distances(a: FloatArray, b: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Differences per coordinate, and whether workers and nodes are the same."""
    apart = np.abs(a[:, None, :] - b[None, :, :])
    return apart, (apart[..., 1] < 1e-9) & (apart[..., 2] < 1e-9)


def _kernel(a: FloatArray, b: FloatArray, logs: FloatArray) -> FloatArray:
    apart, same = _distances(a, b)
    near = _matern(np.sqrt(((apart / np.exp(logs[_LENGTHS])) ** 2).sum(axis=-1)))
    offset = _matern(apart[..., 0] / math.exp(logs[_OFFSET_LENGTH]))
    return np.asarray(
        math.exp(2 * logs[_AMPLITUDE]) * near + math.exp(2 * logs[_OFFSET]) * np.where(same, offset, 0.0)
    )


class _Objective:
    """Minus log posterior of the seven logs, with its gradient; distances are computed once."""

    def __init__(self, points: FloatArray, left: FloatArray) -> None:
        self.left = left
        self.apart, self.same = _distances(points, points)
        self.identity = np.eye(len(points))

    def __call__(self, logs: FloatArray) -> tuple[float, FloatArray]:
        parts = self._parts(logs)
        covariance = parts[_AMPLITUDE] / 2 + parts[_NOISE] / 2 + parts[_OFFSET] / 2
        factor = np.linalg.cholesky(covariance)
        inverse = cho_solve((factor, True), self.identity)
        solved = inverse @ self.left
        from_prior = (logs - _MEAN) / _SD
        value = (
            0.5 * self.left @ solved + np.log(np.diag(factor)).sum() + 0.5 * float(from_prior @ from_prior)
        )
        # derivative of the value by an entry of the covariance
        by_entry = 0.5 * (inverse - np.outer(solved, solved))
        gradient = np.array([(by_entry * part).sum() for part in parts]) + from_prior / _SD
        return float(value), gradient

    def _parts(self, logs: FloatArray) -> list[FloatArray]:
        """Derivative of the covariance by each log."""
        scaled = self.apart / np.exp(logs[_LENGTHS])
        u = math.sqrt(5) * np.sqrt((scaled**2).sum(axis=-1))
        amplitude, fall = math.exp(2 * logs[_AMPLITUDE]), np.exp(-u)
        by_length = [amplitude * 5 / 3 * (1 + u) * fall * scaled[..., i] ** 2 for i in range(3)]
        v = math.sqrt(5) * self.apart[..., 0] / math.exp(logs[_OFFSET_LENGTH])
        offset = np.where(self.same, math.exp(2 * logs[_OFFSET]) * np.exp(-v), 0.0)
        return [
            2 * amplitude * (1 + u + u * u / 3) * fall,
            *by_length,
            2 * math.exp(2 * logs[_NOISE]) * self.identity,
            2 * offset * (1 + v + v * v / 3),
            offset * (1 + v) * v * v / 3,
        ]
