"""Metric at the end of a run by (batch, epochs), from a user's own runs, with intervals: our default.

The value comes from ``metric_curves``: isotonic in epochs per batch size, interpolated in log batch.
80% intervals:  half-width = s(e) sqrt(q + c v(B))

s(e) is the absolute error at left-out batch sizes, smoothed over ln e; v(B) the gap to the neighbouring batch
sizes (``between_batches``; 0 at a sampled one); q and c are quantiles of held-out errors (``conformal``): q of
single rows at sampled batch sizes, c of whole batch sizes left out. Beyond the sampled epochs the curve is flat
and the interval grows by its slope over the last halving, per doubling.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from coadapt.model import Fact
from coadapt.predict._base import Estimate, FloatArray
from coadapt.predict.between_batches import gap_at
from coadapt.predict.conformal import folds_of, spread_factor
from coadapt.predict.isotonic import Curve, Shape, value_at
from coadapt.predict.metric_curves import LeftOut, MetricCurves, curves_of, fit_curves, metrics_at
from coadapt.predict.samples import MetricTable, check_run, metric_columns
from coadapt.predict.samples import observe_metric as observe

__all__ = ["MetricParams", "MetricQuery", "direction", "fit", "half_widths_at", "observe", "predict"]

_ROW_FOLDS = 5
#: Width in ln e over which absolute errors are averaged.
_SMOOTHING = 0.5
#: Relative spread where nothing can be held out: of a row, and over an e-fold of batch size.
_UNKNOWN = 0.1
#: No metric is known better than this share of it.
_LEAST = 1e-4


class MetricQuery(Fact, frozen=True):
    """A run asked about."""

    batch: int
    epochs: float


class MetricParams(Fact, frozen=True, tag=True):
    """Curves and what makes their intervals.

    ``few``: one batch size only, or fewer than two rows for each; the interval is then mostly assumed.
    """

    curves: MetricCurves
    spread: Curve
    within: float
    between: float
    few: bool = False


def direction(higher_is_better: bool) -> Shape:
    """Which way the metric goes with epochs."""
    return "rising" if higher_is_better else "falling"


def fit(table: MetricTable, prior: MetricParams | None = None) -> MetricParams | None:
    """The curves with calibrated intervals; ``prior`` while the table is empty. Memoised."""
    return _fit(table) if table.samples else prior


@lru_cache(maxsize=256)
def _fit(table: MetricTable) -> MetricParams:
    rows, shape = metric_columns(table), direction(table.higher_is_better)
    curves, left_out = fit_curves(rows, shape)
    of_rows = _row_errors(rows, shape, curves.nugget)
    of_batches = np.concatenate([_batch_errors(pair) for pair in left_out]) if left_out else np.zeros((0, 3))
    spread = _spread(rows, of_batches if len(of_batches) else of_rows)
    within = spread_factor(_scaled(spread, of_rows)) ** 2
    if len(of_batches):
        excess = (_scaled(spread, of_batches) ** 2 - within) / of_batches[:, 2]
        between = max(spread_factor(excess), 0.0)
    else:
        between = (_UNKNOWN * float(rows[:, 2].mean()) / min(spread.y)) ** 2
    few = len(curves.rows) < 2 or len(rows) < 2 * len(curves.rows)
    return MetricParams(curves=curves, spread=spread, within=within, between=between, few=few)


def predict(params: MetricParams, x: MetricQuery) -> Estimate:
    """Metric after ``x.epochs`` epochs at ``x.batch``; an interval never goes below 0."""
    check_run("query", x.batch, x.epochs)
    at = np.array([[x.batch, x.epochs]], dtype=np.float64)
    value = float(metrics_at(params.curves, at)[0])
    gap = gap_at(np.array(params.curves.log_batches), math.log(x.batch))
    spread = float(value_at(params.spread, at[:, 1])[0])
    half = spread * math.sqrt(params.within + params.between * gap) + _beyond_epochs(params.curves, x)
    return Estimate(value=value, low=max(value - half, 0.0), high=value + half)


def half_widths_at(params: MetricParams, x: FloatArray) -> FloatArray:
    """Half of the 80% interval for rows of batch and epochs within the sampled epochs: ``predict`` for many."""
    log_batches = np.array(params.curves.log_batches)
    at, of_row = np.unique(np.log(x[:, 0]), return_inverse=True)
    gaps = np.array([gap_at(log_batches, float(log_batch)) for log_batch in at])[of_row]
    return np.asarray(value_at(params.spread, x[:, 1]) * np.sqrt(params.within + params.between * gaps))


def _row_errors(rows: FloatArray, shape: Shape, nugget: float) -> FloatArray:
    """Epochs, absolute error and gap (0) of rows held out at random from batch sizes that keep others."""
    errors = [np.zeros((0, 3))]
    for held in folds_of(rows, _ROW_FOLDS):
        errors.append(_batch_errors((rows[held], curves_of(rows[~held], shape, nugget))))
    found = np.concatenate(errors)
    return np.asarray(found[found[:, 2] == 0])


def _batch_errors(left_out: LeftOut) -> FloatArray:
    """Epochs, absolute error and gap of rows that were left out."""
    rows, curves = left_out
    log_batches = np.array(curves.log_batches)
    batches, of_row = np.unique(rows[:, 0], return_inverse=True)
    gaps = np.array([gap_at(log_batches, math.log(batch)) for batch in batches])[of_row]
    return np.stack([rows[:, 1], np.abs(rows[:, 2] - metrics_at(curves, rows)), gaps], axis=1)


def _spread(rows: FloatArray, errors: FloatArray) -> Curve:
    """s(e) at the sampled epochs."""
    epochs = np.unique(rows[:, 1])
    least = _LEAST * max(float(rows[:, 2].mean()), _LEAST)
    if not len(errors):
        return Curve(
            x=tuple(epochs.tolist()), y=(max(_UNKNOWN * float(rows[:, 2].mean()), least),) * len(epochs)
        )
    near = np.exp(-0.5 * ((np.log(epochs)[:, None] - np.log(errors[:, 0])[None, :]) / _SMOOTHING) ** 2)
    smoothed = (near @ errors[:, 1]) / near.sum(axis=1)
    return Curve(x=tuple(epochs.tolist()), y=tuple(np.maximum(smoothed, least).tolist()))


def _scaled(spread: Curve, errors: FloatArray) -> FloatArray:
    return np.asarray(errors[:, 1] / value_at(spread, errors[:, 0]))


def _beyond_epochs(curves: MetricCurves, x: MetricQuery) -> float:
    """How much the metric may still move beyond the first or the last sampled epoch."""
    first, last = curves.curves[0].x[0], curves.curves[0].x[-1]
    if first <= x.epochs <= last:
        return 0.0
    near, far = (last, last / 2) if x.epochs > last else (first, first * 2)
    pair = np.array([[x.batch, near], [x.batch, far]], dtype=np.float64)
    moved = abs(float(np.subtract(*metrics_at(curves, pair))))
    return moved * abs(math.log2(x.epochs / near))
