"""How many passes to tell a script that makes all the passes it is told: enough for the target, few enough for the limits.

With N the passes to the target and T the time of one, both log-normal, a run of n passes keeps its promise with

    chance(n) = P(N <= n) x P(ever reached) x P(set-up + n T <= limit)

The fewest passes that reach the confidence asked for are told: more of them would only cost. Where none do, those with the best chance. A run
that ends by itself at the target needs none of this: its time is that of N passes (``outlook``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from coadapt.predict._base import FloatArray

#: Shares of the doubt allowed that are left to the number of passes, the rest is time's: tried from the largest on.
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.01)
_TINY = 1e-9


class Told(NamedTuple):
    """One value per option."""

    passes: FloatArray
    #: P(the target is met within these passes | it is ever met).
    met: FloatArray
    #: The limit under which the confidence would be reached; infinite where no time helps.
    least_s: FloatArray


def total_sd(train_sd: FloatArray, train_s: FloatArray, total_s: FloatArray, run_sd: float) -> FloatArray:
    """Spread of the logarithm of a total, of which the set-up is known as well as runs are alike."""
    share = np.divide(train_s, total_s, out=np.ones_like(total_s), where=np.isfinite(total_s) & (total_s > 0))
    return np.hypot(train_sd * share, run_sd)


def told_passes(
    *,
    needed: FloatArray,
    needed_sd: FloatArray,
    reached: FloatArray,
    per_pass_s: FloatArray,
    per_pass_sd: FloatArray,
    setup_s: float,
    run_sd: float,
    limit_s: FloatArray,
    confidence: float,
    whole: bool,
) -> Told:
    """Spreads are of logarithms."""
    passes, met = np.full(len(needed), np.nan), np.zeros(len(needed))
    best, least = np.full(len(needed), -1.0), np.full(len(needed), np.inf)
    for share in _SHARES:
        level = 1 - share * (1 - confidence)
        n = needed * np.exp(float(ndtri(level)) * needed_sd)
        n = np.ceil(n - _TINY) if whole else n
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.log(n / needed)
            hit = np.where(needed_sd > 0, ndtr(off / np.maximum(needed_sd, 1e-12)), 1.0)
            train_s = n * per_pass_s
            total = setup_s + train_s
            sd = total_sd(per_pass_sd, train_s, total, run_sd)
            late = np.log(np.maximum(limit_s, 0.0) / total)
            in_time = np.where(sd > 0, ndtr(late / np.maximum(sd, 1e-12)), late >= -_TINY)
        chance = np.nan_to_num(hit * reached * in_time)
        # once the confidence is reached nothing is better; hopeless ones keep the fewest
        better = (best < confidence - _TINY) & (chance > best + _TINY)
        passes, met = np.where(better, n, passes), np.where(better, hit, met)
        best = np.where(better, chance, best)
        left = confidence / np.maximum(hit * reached, _TINY)
        surely = total * np.exp(ndtri(np.clip(left, 0.5, 1 - _TINY)) * sd)
        least = np.minimum(least, np.where(left < 1, surely, np.inf))
    return Told(passes, met, least)
