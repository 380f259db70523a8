"""Widths of intervals from errors on samples that were held out (split conformal prediction, Lei et al. 2018).

With n held-out errors, each divided by the spread that was expected there, the ceil(0.8 (n + 1))-th smallest is the
factor by which an expected spread becomes an 80% interval. No shape of errors is assumed. Below four
errors there is no such rank: then Student's factor for so few, and never less than the largest error.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coadapt.prediction._base import COVERAGE, FloatArray, t_quantile

FOLDS = 10

#: Masks of the rows that are held out in turn.
Folds = list[npt.NDArray[np.bool_]]


def spread_factor(errors: FloatArray) -> float:
    """Factor from |error| / expected spread, one per held-out sample."""
    n = len(errors)
    rank = math.ceil(COVERAGE * (n + 1))
    if rank <= n:
        return float(np.sort(errors)[rank - 1])
    return max(t_quantile(n - 1), float(errors.max(initial=0.0)))


def spread_factors(errors: FloatArray, places: FloatArray, at: FloatArray, reach: float) -> FloatArray:
    """``spread_factor`` at each of ``at``: an error counts less the further its place is away (after Guan 2023).

    The queried place counts as one more error, with the factor of all: that is what remains where no errors are near.

    Args:
        errors: |error| / expected spread of each held-out sample.
        places: Place of each error.
        at: Places to answer for.
        reach: Distance over which the weight of an error falls by e.
    """
    every = spread_factor(errors)
    ranked, where = np.append(errors, every), np.append(places, np.nan)
    order = np.argsort(ranked)
    ranked, where = ranked[order], where[order]
    found = np.empty(len(at))
    for i, place in enumerate(at):
        weights = np.where(np.isnan(where), 1.0, np.exp(-np.abs(where - place) / reach))
        below = np.cumsum(weights)
        found[i] = ranked[int(np.searchsorted(below, COVERAGE * below[-1]))]
    return found


def folds_of(groups: npt.ArrayLike, folds: int = FOLDS) -> Folds:
    """Masks of what is held out in turn: whole groups, spread over the folds in a fixed shuffle.

    None where there is a single group: nothing can be held out then.
    """
    _, group = np.unique(np.asarray(groups), axis=0, return_inverse=True)
    group = group.ravel()
    count = int(group.max(initial=-1)) + 1
    if count < 2:
        return []
    fold = np.random.default_rng(0).permutation(count) % min(folds, count)
    return [fold[group] == k for k in range(min(folds, count))]
