"""The gradient noise scale from the gradients of a step's parts. Formulas, no tensors; what is made of many: ``noise_filter``.

A gradient over b examples has, in expectation, the squared norm |G|^2 + S / b: G the true gradient, S the sum of the
variances of one example's gradient (McCandlish et al., 2018). With parts of b_c examples, c = 1..n, and their
average g weighted by examples, over B = sum b_c in all,

    S     = (mean |g_c|^2 - |g|^2) / (mean(1 / b_c) - 1 / B)
    |G|^2 = |g|^2 - S (1 / B - 1 / N),     phi = S / |G|^2,        at M0:  sqr = |G|^2, var = S / M0

N are the examples of a pass: within it none comes twice, so that the mean of a batch strays less, by S / N, from the mean
of all (sampling without replacement). Small beside |g|^2, but late in training on small data several times |G|^2, which
came out below zero without it. With N without end this is, for equal parts, AdaptDL's pair
sqr = (n |g|^2 - mean |g_c|^2) / (n - 1), var = (mean |g_c|^2 - |g|^2) (B / M0) / (n - 1).
Parts are replicas, accumulation passes, or both. One replica with one pass has only the gradient of the step before:
two parts whose parameters differ by one step. That step moved against the gradient, so the second gradient is
smaller where the loss is curved; S is too large by what the step changed. Early in training phi came out up to 40% too large
where that was looked at; late, where the gradient is all but noise, more. So when better samples come, what was known before still counts, but for less.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Sample(NamedTuple):
    """One estimate: squared norm of the true gradient, and its variance at M0. Either may be below zero by chance."""

    sqr: float
    var: float
    successive: bool = False


def estimate(
    mean_sqr: float,
    total_sqr: float,
    *,
    batch: int,
    mean_inverse: float,
    initial_batch: int,
    population: float = math.inf,
) -> tuple[float, float] | None:
    """(sqr, var) from the mean squared norm of the parts and that of their average; None if there is only one part.

    ``population``: the examples that the batch was drawn from, each at most once.
    """
    apart = mean_inverse - 1 / batch
    if apart <= 1e-12 or not math.isfinite(mean_sqr + total_sqr):
        return None
    spread = (mean_sqr - total_sqr) / apart
    # two steps in a row may lie in two passes, and have more examples than there are
    return total_sqr - spread * max(1 / batch - 1 / population, 0.0), spread / initial_batch
