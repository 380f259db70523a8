"""Epoch time and final metric as a weighted sum of one-dimensional isotonic curves, as published.

Liang et al., "A Collaborative Method for Resource Allocation and Batch Sizing on Distributed Deep Learning
System", Chinese Journal of Computers 45(2), 2022, sections 3.1-3.2: with B batch size, K workers, e epochs,

    epoch time   f1(B, K) = w_B c_B(B) + w_K c_K(K)      c_B falls, then rises;  c_K falls
    metric       f2(B, e) = v_B d_B(B) + v_e d_e(e)      d_B rises, then falls;  d_e rises
    weights      m_p = 1 - 1/(MI(p; target) + 1),  w_p = m_p / sum m

each curve by PAVA on the pairs (parameter, target), all other parameters ignored. For a metric where
lower is better d_B falls, then rises, and d_e falls.

What the text leaves open and we had to choose: the bins of the entropies (``information``); that a curve with a
turn is the best one over all turning points; linear between samples, flat beyond them. We deviate in one
point: an 80% interval, from relative errors on held-out groups (``conformal``), wider beyond the samples.
A weighted mean of marginals cannot be a product such as (1/B)(a + b B/K): on grids of B and K it stays far
from its samples, whatever their number. It is here as the published alternative, and to be beaten.
"""

from __future__ import annotations

import numpy as np

from coadapt.model import Fact
from coadapt.predict._base import Estimate, FloatArray
from coadapt.predict.conformal import Folds, spread_factor
from coadapt.predict.information import weights
from coadapt.predict.isotonic import Curve, Shape, fit_curve, value_at

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
    """The same with an interval from the groups that the folds hold out."""
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


def predict(params: WeightedParams, x: tuple[float, ...]) -> Estimate:
    """Value at one point; the interval widens with every e-fold beyond the samples, never below 0."""
    value = float(values_at(params, np.array([x], dtype=np.float64))[0])
    beyond = sum(
        max(float(np.log(curve.x[0] / at)), float(np.log(at / curve.x[-1])), 0.0)
        for curve, at in zip(params.curves, x, strict=True)
    )
    half = value * params.width * (1 + beyond)
    return Estimate(value=value, low=max(value - half, 0.0), high=value + half)
