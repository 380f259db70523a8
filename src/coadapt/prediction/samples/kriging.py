"""Kriging in log batch: a quantity known at some batch sizes, at any other.

``along`` estimates a quantity that was observed with error, shrunk towards its neighbours where they agree.

    y_i = f(ln B_i) + e_i,   e_i ~ N(0, v_i),   f Brownian in ln B with variance t per e-fold, its level unknown

v_i is the error variance of each value, given by the caller; t, how much neighbours really differ, is learned: the mode
of the likelihood under a wide log-normal prior (empirical Bayes, Efron and Morris 1973). Where neighbours differ little
more than their errors explain they are averaged; where they differ more, each keeps its own.

``weights_at`` is the same with a fixed t and given error variances: weights that combine curves at some batch sizes into a
curve at any other, by kriging with a linear variogram. A quantity that varies like Brownian motion in ln B, observed at
B_1..B_k with error variances nu_i, is best estimated by weights w that sum to 1 and solve (Matheron 1963)

    [-|l_i - l_j|/2 + diag(nu)   1] [w]   [-|l_i - l|/2]
    [ 1                          0] [c] = [ 1          ]          l = ln B

With nu = 0 this *is* linear interpolation in ln B, and the nearest curve beyond the ends. With large nu it is
the mean over all batch sizes, the epoch-only curve. In between it shrinks the one towards the other, most where a
batch size has few rows. Negative weights, which a nugget can cause, are cut: a mean of rising curves rises.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_solve

from coadapt.prediction._base import FloatArray

#: Tried variances per e-fold of batch size, as spreads, and the prior of their logarithm.
_SPREADS = np.geomspace(0.01, 1.0, 15)
_PRIOR, _PRIOR_SD = math.log(0.1), 1.0
#: Variance of the level: so wide that it is unknown.
_LEVEL = 25.0


def along(
    log_batches: FloatArray, values: FloatArray, variance: FloatArray, at: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Expected value and its variance at any batch size, from values at some batch sizes.

    Args:
        log_batches: ln B of the known values, rising.
        values: The known values.
        variance: Variance of the error of each value.
        at: ln B to answer for.
    """
    centre = float(np.average(values, weights=1 / variance))
    off = values - centre
    spread = max(_SPREADS, key=lambda each: _log_posterior(log_batches, off, variance, float(each)))
    factor = _factor(log_batches, variance, float(spread))
    first = float(log_batches[0])
    cross = _covariance(at, log_batches, first, float(spread))
    mean = centre + cross @ cho_solve((factor, True), off)
    alone = _LEVEL + spread**2 * np.abs(at - first)
    left = alone - (cross * cho_solve((factor, True), cross.T).T).sum(axis=1)
    return np.asarray(mean), np.maximum(left, 0.0)


def _covariance(a: FloatArray, b: FloatArray, first: float, spread: float) -> FloatArray:
    """Of a Brownian motion both ways from ``first``, on top of the level."""
    x, y = a[:, None] - first, b[None, :] - first
    shared = np.where(x * y > 0, np.minimum(np.abs(x), np.abs(y)), 0.0)
    return np.asarray(_LEVEL + spread**2 * shared)


def _factor(log_batches: FloatArray, variance: FloatArray, spread: float) -> FloatArray:
    covariance = _covariance(log_batches, log_batches, float(log_batches[0]), spread) + np.diag(variance)
    return np.asarray(np.linalg.cholesky(covariance))


def _log_posterior(log_batches: FloatArray, off: FloatArray, variance: FloatArray, spread: float) -> float:
    factor = _factor(log_batches, variance, spread)
    fit = -0.5 * float(off @ cho_solve((factor, True), off)) - float(np.log(np.diag(factor)).sum())
    return fit - 0.5 * ((math.log(spread) - _PRIOR) / _PRIOR_SD) ** 2


def weights_at(log_batches: FloatArray, nugget: FloatArray, at: FloatArray) -> FloatArray:
    """Weight of each batch size's curve (row) in the estimate at each of ``at`` (column), in ln B."""
    k = len(log_batches)
    system = np.ones((k + 1, k + 1))
    system[:k, :k] = np.diag(nugget) - np.abs(log_batches[:, None] - log_batches[None, :]) / 2
    system[k, k] = 0.0
    right = np.ones((k + 1, len(at)))
    right[:k] = -np.abs(log_batches[:, None] - at[None, :]) / 2
    weights = np.maximum(np.linalg.solve(system, right)[:k], 0.0)
    return np.asarray(weights / weights.sum(axis=0))


def gap_at(log_batches: FloatArray, at: float) -> float:
    """Variance of the wanderer at ``at`` given its values at all batch sizes: 0 at one of them.

    Between neighbours at distances p and q: pq/(p + q); beyond the ends the distance itself.
    """
    below, above = log_batches[log_batches <= at], log_batches[log_batches >= at]
    p = at - below.max() if below.size else np.inf
    q = above.min() - at if above.size else np.inf
    if p == 0 or q == 0:
        return 0.0
    return float(1 / (1 / p + 1 / q))
