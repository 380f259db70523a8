"""Step time up to the data size, from epoch times: Pollux' form (``step_time``) made aware of nodes.

With N examples, B batch size, K workers on n nodes, m = B/K, an epoch takes (N/B) T, so that B x epoch time = N T:

    G    = (a + b m) (K/n)^h                           workers on a node share its processors
    S    = r (K/2)^p on one node;  s (K/8)^q on more;  s (K/8)^q e^d on two;  0 for K = 1
    N T  = (G^g + S^g)^(1/g) + o B                     o N: what an epoch costs besides its steps

Two nodes have a term of their own because one link pair is not a ring: measured times are not monotone in nodes.
Where we deviate from Pollux: powers of K for lines in K, h, d and o; relative errors, which go together for samples of one worker count; weak normal
priors on all ten (logs of times, plain powers) around what the samples' medians suggest, so that a parameter the samples do not
determine stays at its prior, with its prior's uncertainty, and eight samples suffice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import solve_triangular

from coadapt.predict._base import FloatArray

PARAMETERS = 10
(_A, _B, _R, _P, _S, _Q, _D, _G, _H, _O) = range(PARAMETERS)
#: Spread of the relative error that weighs samples against priors.
_SCATTER = 0.08
_SD = np.array([1.3, 2.0, 0.8, 0.3, 2.0, 0.3, 0.5, 1.0, 0.1, 1.5])
#: Bounds that only nonsense reaches, and steps that only nonsense needs.
_FARTHEST, _MAX_STEPS = 12.0, 50
_DAMPING, _GIVE_UP, _ENOUGH = 1e-2, 1e8, 1e-5
#: a belongs to b m, and r to s, more closely than either to the median time.
_TIES = np.eye(PARAMETERS)
_TIES[_A, _B] = _TIES[_R, _S] = -1.0
_LOG_2, _LOG_8 = np.log(2.0), np.log(8.0)


def log_time(theta: FloatArray, x: FloatArray) -> FloatArray:
    """ln(N T) for rows of batch, workers, nodes (further columns are ignored)."""
    return _terms(theta, x)[0]


def _terms(theta: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(N T) and its derivatives, a column per parameter."""
    batch, workers, nodes = x[:, 0], x[:, 1], x[:, 2]
    slopes = np.zeros((len(x), PARAMETERS))
    log_batch, log_more, of_node = np.log(batch), np.log(np.maximum(workers, 2.0)), np.log(workers / nodes)
    log_local = log_batch - np.log(workers)
    log_grad = np.logaddexp(theta[_A], theta[_B] + log_local)
    of_a = np.exp(theta[_A] - log_grad)
    log_grad = log_grad + theta[_H] * of_node
    apart = nodes > 1
    inside = theta[_R] + theta[_P] * (log_more - _LOG_2)
    between = theta[_S] + theta[_Q] * (log_more - _LOG_8) + np.where(nodes == 2, theta[_D], 0.0)
    log_sync = np.where(apart, between, inside)
    gamma = 1 + np.exp(theta[_G])
    many = workers > 1
    log_step = np.where(many, np.logaddexp(gamma * log_grad, gamma * log_sync) / gamma, log_grad)
    log_epoch = theta[_O] + log_batch
    total = np.logaddexp(log_step, log_epoch)
    of_step = np.exp(log_step - total)
    of_grad = np.where(many, np.exp(gamma * (log_grad - log_step)), 1.0)
    by_grad, by_sync = of_step * of_grad, of_step * (1 - of_grad)
    slopes[:, _A], slopes[:, _B], slopes[:, _H] = by_grad * of_a, by_grad * (1 - of_a), by_grad * of_node
    slopes[:, _R], slopes[:, _S] = np.where(apart, 0.0, by_sync), np.where(apart, by_sync, 0.0)
    slopes[:, _P] = slopes[:, _R] * (log_more - _LOG_2)
    slopes[:, _Q] = slopes[:, _S] * (log_more - _LOG_8)
    slopes[:, _D] = np.where(nodes == 2, by_sync, 0.0)
    middle = of_grad * log_grad + (1 - of_grad) * np.where(many, log_sync, 0.0) - log_step
    slopes[:, _G] = np.where(many, of_step * middle * (gamma - 1) / gamma, 0.0)
    slopes[:, _O] = 1 - of_step
    return np.asarray(total), slopes


def fit_form(
    x: FloatArray,
    log_times: FloatArray,
    start: FloatArray | None = None,
    factor: FloatArray | None = None,
    astray: FloatArray | None = None,
) -> FloatArray:
    """Most probable parameters, searched from ``start`` or the prior.

    ``factor``: lower Cholesky factor of the covariance of what the form leaves over; None: all alike and apart. ``astray``: where the priors lie instead,
    in their spreads (for ``plausible_forms``).
    """
    mean = _prior_mean(x, log_times)
    lower, upper = mean - _FARTHEST, mean + _FARTHEST
    start = mean if start is None else np.clip(start, lower, upper)
    moved = np.zeros(PARAMETERS) if astray is None else astray

    def misfit(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_time_s, slopes = _terms(theta, x)
        both = np.column_stack([log_time_s - log_times, slopes])
        both = both / _SCATTER if factor is None else solve_triangular(factor, both, lower=True)
        off = np.concatenate([both[:, 0], _TIES @ (theta - mean) / _SD - moved])
        return off, np.concatenate([both[:, 1:], _TIES / _SD[:, None]])

    return _descended(misfit, start, lower, upper)


def _descended(
    misfit: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    theta: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Least squares after Levenberg and Marquardt; a library's is ten times as slow for ten parameters, and plans make forty."""
    damping = _DAMPING
    off, slopes = misfit(theta)
    cost = float(off @ off)
    for _ in range(_MAX_STEPS):
        normal, downhill = slopes.T @ slopes, slopes.T @ off
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
        there = np.clip(theta - step, lower, upper)
        new_off, new_slopes = misfit(there)
        new_cost = float(new_off @ new_off)
        if new_cost > cost:
            damping *= 8
            if damping > _GIVE_UP:
                break
            continue
        done = cost - new_cost <= _ENOUGH * cost
        theta, off, slopes, cost = there, new_off, new_slopes, new_cost
        damping = max(damping / 5, 1e-9)
        if done:
            break
    return theta


def plausible_forms(
    x: FloatArray, log_times: FloatArray, theta: FloatArray, factor: FloatArray, count: int
) -> FloatArray:
    """So many parameters that the samples leave possible, a row each: what would be most probable had noise and priors fallen otherwise.

    (Randomise, then optimise: Bardsley et al. 2014.) A covariance around the mode would not do: where synchronising hides the computing, or a constant
    may be either launches or latency, what is possible is far from a normal distribution.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        noise = factor @ rng.normal(size=len(x))
        found.append(fit_form(x, log_times + noise, theta, factor, rng.normal(size=PARAMETERS)))
    return np.array(found)


def _prior_mean(x: FloatArray, log_times: FloatArray) -> FloatArray:
    centre, batch = float(np.median(log_times)), np.log(x[:, 0])
    local = batch - np.log(x[:, 1])
    atomic = float(np.median(local))
    mean = np.zeros(PARAMETERS)
    mean[_B] = centre - 1.0 - atomic
    # launches against the largest batch per GPU, which memory decides: an eighth of the computing, give or take a factor four
    mean[_A] = mean[_B] + float(local.max()) - 2.0
    mean[_S], mean[_R] = centre - 1.0, centre - 2.0
    mean[[_P, _Q]] = 0.3
    mean[_O] = centre - 6.0 - float(np.median(batch))
    return mean
