"""From curves at some batch sizes to a curve at any other: kriging in log batch with a linear variogram.

A quantity that wanders like Brownian motion in ln B, seen at B_1..B_k with error variances nu_i, is best guessed by
weights w that sum to 1 and solve (Matheron 1963)

    [-|l_i - l_j|/2 + diag(nu)   1] [w]   [-|l_i - l|/2]
    [ 1                          0] [c] = [ 1          ]          l = ln B

With nu = 0 this *is* linear interpolation in ln B, and the nearest curve beyond the ends. With large nu it is
the mean over all batch sizes, the epoch-only curve. In between it shrinks the one towards the other, most where a
batch size has few rows. Negative weights, which a nugget can cause, are cut: a mean of rising curves rises.
"""

from __future__ import annotations

import numpy as np

from coadapt.predict._base import FloatArray


def weights_at(log_batches: FloatArray, nugget: FloatArray, at: FloatArray) -> FloatArray:
    """Weight of each batch size's curve (row) in the guess at each of ``at`` (column), in ln B."""
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
