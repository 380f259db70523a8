"""A quantity seen with error at some batch sizes, at any batch size: what each says itself, shrunk to its neighbours as far as they agree.

    y_i = f(ln B_i) + e_i,   e_i ~ N(0, v_i),   f Brownian in ln B with variance t per e-fold, its level unknown

v_i is what the caller knows of each value's own error; t, how much neighbours differ in truth, is learned: the mode of the likelihood under a wide
log-normal prior (empirical Bayes, Efron and Morris 1973). Where neighbours differ little more than their errors explain they are averaged;
where they differ more, each keeps its own. ``between_batches`` is the same with a fixed t and one error for all.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_solve

from coadapt.predict._base import FloatArray

#: Tried variances per e-fold of batch size, as spreads, and the prior of their logarithm.
_SPREADS = np.geomspace(0.01, 1.0, 15)
_PRIOR, _PRIOR_SD = math.log(0.1), 1.0
#: Variance of the level: so wide that it is unknown.
_LEVEL = 25.0


def along(
    log_batches: FloatArray, values: FloatArray, variance: FloatArray, at: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Expected value and its variance at each of ``at`` (in ln B)."""
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
