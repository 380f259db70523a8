"""Step time up to the data size, from epoch times: Pollux' form (``step_time``) made aware of nodes.

With N examples, B batch size, K workers on n nodes, m = B/K, an epoch takes (N/B) T, so that B x epoch time = N T:

    G    = (a + b m) (K/n)^h                           workers on a node share its processors
    S    = r (K/2)^p on one node;  s (K/8)^q on more;  s (K/8)^q e^d on two;  0 for K = 1
    N T  = (G^g + S^g)^(1/g) + o B                     o N: what an epoch costs besides its steps

Two nodes have a term of their own because one link pair is not a ring: measured times are not monotone in nodes.
Where we deviate from Pollux: powers of K for lines in K, h, d and o; relative errors; weak normal priors on all ten
(logs of times, plain powers) around what the samples' medians suggest, so that a parameter the samples do not
determine stays at its prior, with its prior's uncertainty, and eight samples suffice.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import least_squares

from coadapt.predict._base import FloatArray

PARAMETERS = 10
(_A, _B, _R, _P, _S, _Q, _D, _G, _H, _O) = range(PARAMETERS)
#: Spread of the relative error that weighs samples against priors.
_SCATTER = 0.08
_SD = np.array([1.2, 2.0, 0.8, 0.3, 2.0, 0.3, 0.5, 1.0, 0.1, 1.5])
#: Bounds that only nonsense reaches, and steps that only nonsense needs.
_FARTHEST, _MAX_STEPS = 12.0, 50


def log_time(theta: FloatArray, x: FloatArray) -> FloatArray:
    """ln(N T) for rows of batch, workers, nodes (further columns are ignored)."""
    batch, workers, nodes = x[:, 0], x[:, 1], x[:, 2]
    more = np.maximum(workers, 2.0)
    log_grad = np.logaddexp(theta[_A], theta[_B] + np.log(batch / workers))
    log_grad = log_grad + theta[_H] * np.log(workers / nodes)
    inside = theta[_R] + theta[_P] * np.log(more / 2)
    between = theta[_S] + theta[_Q] * np.log(more / 8) + np.where(nodes == 2, theta[_D], 0.0)
    log_sync = np.where(nodes > 1, between, inside)
    gamma = 1 + np.exp(theta[_G])
    together = np.logaddexp(gamma * log_grad, gamma * log_sync) / gamma
    log_step = np.where(workers > 1, together, log_grad)
    return np.asarray(np.logaddexp(log_step, theta[_O] + np.log(batch)))


def fit_form(
    x: FloatArray, log_times: FloatArray, start: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Most probable parameters and their covariance (Gauss-Newton), searched from ``start`` or the prior."""
    mean = _prior_mean(x, log_times)
    lower, upper = mean - _FARTHEST, mean + _FARTHEST
    start = mean if start is None else np.clip(start, lower, upper)

    def residual(theta: FloatArray) -> FloatArray:
        # a belongs to b m, and r to s, more closely than either to the median time
        against = theta - mean
        against[_A] -= against[_B]
        against[_R] -= against[_S]
        return np.concatenate([(log_time(theta, x) - log_times) / _SCATTER, against / _SD])

    found = least_squares(
        residual, start, bounds=(lower, upper), x_scale=_SD, ftol=1e-5, xtol=1e-5, max_nfev=_MAX_STEPS
    )
    slopes = np.asarray(found.jac, dtype=np.float64)
    return found.x, np.asarray(np.linalg.inv(slopes.T @ slopes), dtype=np.float64)


def form_variance(theta: FloatArray, covariance: FloatArray, x: FloatArray) -> FloatArray:
    """Variance of ln(N T) from what the samples leave open in the parameters."""
    step = 1e-4 * _SD
    slopes = np.stack(
        [
            (log_time(theta + step * unit, x) - log_time(theta - step * unit, x)) / (2 * step[i])
            for i, unit in enumerate(np.eye(PARAMETERS))
        ]
    )
    return np.asarray(np.einsum("in,ij,jn->n", slopes, covariance, slopes))


def _prior_mean(x: FloatArray, log_times: FloatArray) -> FloatArray:
    centre, batch = float(np.median(log_times)), np.log(x[:, 0])
    atomic = float(np.median(batch - np.log(x[:, 1])))
    mean = np.zeros(PARAMETERS)
    mean[_B], mean[_A] = centre - 1.0 - atomic, centre - 2.5
    mean[_S], mean[_R] = centre - 1.0, centre - 2.0
    mean[[_P, _Q]] = 0.3
    mean[_O] = centre - 6.0 - float(np.median(batch))
    return mean
