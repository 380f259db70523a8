"""Isotonic curves (pool adjacent violators), and the published weighted sum of them for epoch time and metric.

**The published method** (``WeightedParams``, ``fit_rows``). Liang et al., "A Collaborative Method for Resource Allocation and
Batch Sizing on Distributed Deep Learning System", Chinese Journal of Computers 45(2), 2022, sections 3.1-3.2: with B batch
size, K workers, e epochs,

    epoch time   f1(B, K) = w_B c_B(B) + w_K c_K(K)      c_B falls, then rises;  c_K falls
    metric       f2(B, e) = v_B d_B(B) + v_e d_e(e)      d_B rises, then falls;  d_e rises
    weights      m_p = 1 - 1/(MI(p; target) + 1),  w_p = m_p / sum m

each curve by PAVA on the pairs (parameter, target), all other parameters ignored. For a metric where
lower is better d_B falls, then rises, and d_e falls.

What the text leaves open and we had to choose: the bins of the entropies (below); that a curve with a
turn is the best one over all turning points; linear between samples, flat beyond them. We deviate in one
point: an 80% interval, from relative errors on held-out groups (``conformal``), wider beyond the samples.
A weighted mean of marginals cannot be a product such as (1/B)(a + b B/K): on grids of B and K it stays far
from its samples, whatever their number. It is here as the published alternative, and to be beaten.

**Curves** (``fit_curve``). Least-squares curves that only rise, only fall, or turn once (Mair et al. 2009).

    rising   min sum_i w_i (y_i - c_i)^2   subject to c_1 <= c_2 <= ... <= c_n
    peak     the same, rising up to some i and falling from there on; the best i is found by trying all
    falling, valley: these of -y

A curve is linear between its knots and flat beyond them. Values at the same x are averaged first, with their
number as weight: the same minimum, since one x has one c.

**Mutual information** (``mutual_information``). Entropies in bits of values sorted into equal-frequency bins.

    H(Y) = -sum P(y) log2 P(y)      MI(X; Y) = H(X) + H(Y) - H(X, Y)  (= H(Y) - H(Y | X))

Ten bins (the publication names no number; it samples ten batch sizes), and never more than sqrt(rows): with a bin
per row every column would seem to determine the target. Bins go by rank, equal values share one, so that any
strictly rising change of units leaves every entropy as it is: this is also the publication's normalisation.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression
from scipy.stats import rankdata

from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.conformal import Folds, spread_factor

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
    """Value of the curve at each x."""
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


BINS = 10


def binned(values: FloatArray) -> npt.NDArray[np.int64]:
    """Number of the bin of each value."""
    rows = len(values)
    bins = max(min(BINS, math.isqrt(rows)), 1)
    share = (rankdata(values) - 0.5) / rows
    return np.minimum((share * bins).astype(np.int64), bins - 1)


def entropy(*columns: npt.NDArray[np.int64]) -> float:
    """Joint entropy of columns of bins."""
    _, count = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    share = count / count.sum()
    return float(-(share * np.log2(share)).sum())


def mutual_information(x: FloatArray, y: FloatArray) -> float:
    """Bits that x and y share; 0 where one of them is constant."""
    a, b = binned(x), binned(y)
    return max(entropy(a) + entropy(b) - entropy(a, b), 0.0)


def weights(columns: list[FloatArray], target: FloatArray) -> tuple[float, ...]:
    """m / sum(m), m = 1 - 1/(MI + 1), per column; equal ones where no column says anything."""
    said = [1 - 1 / (mutual_information(column, target) + 1) for column in columns]
    total = sum(said)
    if total <= 1e-12:
        return (1 / len(columns),) * len(columns)
    return tuple(m / total for m in said)


#: Shapes of epoch time over (batch, workers), and of a metric over (batch, epochs).
EPOCH_SHAPES: tuple[Shape, Shape] = ("valley", "falling")
RISING_METRIC_SHAPES: tuple[Shape, Shape] = ("peak", "rising")
FALLING_METRIC_SHAPES: tuple[Shape, Shape] = ("valley", "falling")
_TINY = 1e-12


class WeightedParams(Fact, frozen=True, tag=True):
    """One curve and one weight per parameter; half of the interval relative to the value."""

    weights: tuple[float, ...]
    curves: tuple[Curve, ...]
    width: float = 0.0
    few: bool = False


def metric_shapes(higher_is_better: bool) -> tuple[Shape, Shape]:
    """Shapes over (batch, epochs)."""
    return RISING_METRIC_SHAPES if higher_is_better else FALLING_METRIC_SHAPES


def fit_rows(x: FloatArray, target: FloatArray, shapes: tuple[Shape, ...]) -> WeightedParams:
    """The published method on the columns of ``x``, without an interval."""
    columns = list(x.T)
    curves = (fit_curve(column, target, shape) for column, shape in zip(columns, shapes, strict=True))
    return WeightedParams(weights=weights(columns, target), curves=tuple(curves))


def fit_held_out(
    x: FloatArray, target: FloatArray, shapes: tuple[Shape, ...], folds: Folds
) -> WeightedParams:
    """``fit_rows`` with an interval from errors on held-out groups.

    Args:
        x: One column per parameter.
        target: The value of each row.
        shapes: Shape of the curve of each parameter.
        folds: Masks of the groups that are held out in turn.
    """
    fitted = fit_rows(x, target, shapes)
    errors = [np.zeros(0)]
    for held in folds:
        values = values_at(fit_rows(x[~held], target[~held], shapes), x[held])
        errors.append(np.abs(target[held] - values) / np.maximum(values, _TINY))
    width = spread_factor(np.concatenate(errors))
    few = len(x) < sum(len(curve.x) for curve in fitted.curves)
    return WeightedParams(weights=fitted.weights, curves=fitted.curves, width=width, few=few)


def values_at(params: WeightedParams, x: FloatArray) -> FloatArray:
    """Weighted sum of the curves."""
    heights = [value_at(curve, column) for curve, column in zip(params.curves, x.T, strict=True)]
    return np.asarray(np.array(params.weights) @ np.stack(heights))


def predict(params: WeightedParams, x: tuple[float, ...]) -> Interval:
    """Value at one point; the interval widens with every e-fold beyond the samples, never below 0."""
    value = float(values_at(params, np.array([x], dtype=np.float64))[0])
    beyond = sum(
        max(float(np.log(curve.x[0] / at)), float(np.log(at / curve.x[-1])), 0.0)
        for curve, at in zip(params.curves, x, strict=True)
    )
    half = value * params.width * (1 + beyond)
    return Interval(value=value, low=max(value - half, 0.0), high=value + half)
