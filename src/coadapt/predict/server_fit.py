"""Our fit of the speed of a job with parameter servers: Optimus' formula with priors and a residual.

    minimise  r' C^-1 r + sum ((theta - mean) / deviation)^2,     r = log T - log(terms @ exp(theta))

``terms`` are those of the formula (``parameter_server``) and 1/p: what one worker alone waits for one server,
which the formula counts as if it vanished with the workers. Measured speeds stray from any smooth formula by
how evenly p servers share the parameters and by how w workers are spread, so C has a smooth part, a part that
is alike only for like p, and one for like w; all in logarithms, and all fading.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coadapt.predict._base import FloatArray

#: Scatter of log times: one measurement; smooth part; by number of servers; by number of workers.
_NOISE, _SMOOTH, _BY_SERVERS, _BY_WORKERS = 0.035, 0.07, 0.08, 0.03
#: Distances in logarithms over which these are alike: smooth, of the like number, of the other one.
_LENGTH, _LIKE, _OTHER = 1.5, 0.25, 4.0
_VARIANCE = _SMOOTH**2 + _BY_SERVERS**2 + _BY_WORKERS**2
#: Points that the assumed scatter is worth when residuals judge it.
ASSUMED_POINTS = 3
_ITERATIONS, _TOLERANCE, _LONGEST = 40, 1e-7, 2.0


class ServerSolution(NamedTuple):
    """Logarithms of the coefficients, what is left over at each point, and the scale of it."""

    theta: FloatArray
    left: FloatArray
    scale: float


def kernel(
    servers: FloatArray, workers: FloatArray, at_servers: FloatArray, at_workers: FloatArray
) -> FloatArray:
    """Covariance of what is left over, with the support's (new last axis)."""
    by_p = np.abs(np.log(servers)[..., None] - np.log(at_servers))
    by_w = np.abs(np.log(workers)[..., None] - np.log(at_workers))
    smooth = _SMOOTH**2 * np.exp(-(by_p + by_w) / _LENGTH)
    shards = _BY_SERVERS**2 * np.exp(-by_p / _LIKE - by_w / _OTHER)
    spread = _BY_WORKERS**2 * np.exp(-by_w / _LIKE - by_p / _OTHER)
    return np.asarray(smooth + shards + spread)


def inverse_covariance(servers: FloatArray, workers: FloatArray) -> FloatArray:
    """C^-1 of points."""
    covariance = kernel(servers, workers, servers, workers) + _NOISE**2 * np.eye(len(servers))
    return np.asarray(np.linalg.inv(covariance))


def solve(
    terms: FloatArray, log_t: FloatArray, inverse: FloatArray, mean: FloatArray, deviation: FloatArray
) -> ServerSolution:
    """Levenberg-Marquardt from the prior's mean."""
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
    """d log T by the parameters, and log T."""
    parts = terms * np.exp(theta)
    total = parts.sum(axis=-1)
    return parts / total[..., None], np.log(total)


def variance(
    alike: FloatArray, inverse: FloatArray, slopes: FloatArray, at_slopes: FloatArray, deviation: FloatArray
) -> float:
    """Of log T at one point: ``alike`` its kernel with the support, ``slopes`` its derivatives."""
    through = alike @ inverse
    information = at_slopes.T @ inverse @ at_slopes + np.diag(deviation**-2)
    apart = slopes - through @ at_slopes
    return float(_VARIANCE + _NOISE**2 - through @ alike + apart @ np.linalg.solve(information, apart))
