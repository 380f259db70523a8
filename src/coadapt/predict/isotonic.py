"""Least-squares curves that only rise, only fall, or turn once (pool adjacent violators, Mair et al. 2009).

    rising   min sum_i w_i (y_i - c_i)^2   subject to c_1 <= c_2 <= ... <= c_n
    peak     the same, rising up to some i and falling from there on; the best i is found by trying all
    falling, valley: these of -y

A curve is linear between its knots and flat beyond them. Values at the same x are averaged first, with their
number as weight: the same minimum, since one x has one c.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression

from coadapt.model import Fact
from coadapt.predict._base import FloatArray

Shape = Literal["rising", "falling", "peak", "valley"]


class Curve(Fact, frozen=True):
    """Knots in order of x."""

    x: tuple[float, ...]
    y: tuple[float, ...]


def fit_curve(x: FloatArray, y: FloatArray, shape: Shape) -> Curve:
    """The curve of this shape nearest to the points."""
    at, mean, count = averaged(x, y)
    return Curve(x=tuple(at.tolist()), y=tuple(shaped(mean, count, shape).tolist()))


def value_at(curve: Curve, x: FloatArray) -> FloatArray:
    """Height of the curve at each x."""
    return np.interp(x, curve.x, curve.y)


def averaged(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct x in order, the mean of y at each, and how many there were."""
    at, group, count = np.unique(x, return_inverse=True, return_counts=True)
    return at, np.bincount(group.ravel(), weights=y) / count, count.astype(np.float64)


def shaped(y: FloatArray, weight: FloatArray, shape: Shape) -> FloatArray:
    """The sequence of this shape nearest to ``y``."""
    if shape in ("falling", "valley"):
        return -shaped(-y, weight, "rising" if shape == "falling" else "peak")
    return _rising(y, weight) if shape == "rising" else _peak(y, weight)


def _rising(y: FloatArray, weight: FloatArray) -> FloatArray:
    if len(y) == 0:
        return y
    return np.asarray(isotonic_regression(y, weights=weight).x, dtype=np.float64)


def _peak(y: FloatArray, weight: FloatArray) -> FloatArray:
    """A rising head and a falling tail, whichever is higher where they meet, always turn once at most."""
    candidates = (
        np.concatenate([_rising(y[:i], weight[:i]), -_rising(-y[i:], weight[i:])])
        for i in range(1, len(y) + 1)
    )
    return min(candidates, key=lambda fitted: float(weight @ (y - fitted) ** 2))
