"""Metric at the end of a run by (batch, epochs), from a user's own runs, with intervals: our default.

One isotonic curve per batch size, joined in log batch:

    f(B, e) = sum_i w_i(ln B) c_i(e),   c_i = PAVA of  pooled(e) + (iso_i - pooled)(e)

Rising in e where higher is better, else falling. iso_i is fitted to the rows of batch size B_i alone; the pooled
(epoch-only) curve lends its shape where B_i has few rows, the difference being linear in ln e between them
and constant beyond. The weights are those of ``kriging``; how much they shrink towards the mean over batch
sizes is chosen by leaving out each inner batch size in turn. No shape is imposed on B: at equal epochs of
work there is often none.

80% intervals:  half-width = s(e) sqrt(q + c v(B))

s(e) is the absolute error at left-out batch sizes, smoothed over ln e; v(B) the gap to the neighbouring batch
sizes (``kriging``; 0 at a sampled one); q and c are quantiles of held-out errors (``conformal``): q of
single rows at sampled batch sizes, c of whole batch sizes left out. Beyond the sampled epochs the curve is flat
and the interval grows by its slope over the last halving, per doubling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.conformal import Folds, folds_of, spread_factor
from coadapt.prediction.samples.isotonic import Curve, Shape, fit_curve, shaped, value_at
from coadapt.prediction.samples.kriging import gap_at, weights_at
from coadapt.prediction.samples.sample_table import MetricTable, check_run, metric_columns
from coadapt.prediction.samples.sample_table import observe_metric as observe

__all__ = ["MetricParams", "MetricQuery", "direction", "fit", "half_widths_at", "observe", "predict"]

_ROW_FOLDS = 5
#: Width in ln e over which absolute errors are averaged.
_SMOOTHING = 0.5
#: Relative spread where nothing can be held out: of a row, and over an e-fold of batch size.
_UNKNOWN = 0.1
#: No metric is known better than this share of it.
_LEAST = 1e-4


class MetricQuery(Fact, frozen=True):
    """A run to predict."""

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
    """Shape of the metric over epochs: rising or falling."""
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


def predict(params: MetricParams, x: MetricQuery) -> Interval:
    """Metric after ``x.epochs`` epochs at ``x.batch``; an interval never goes below 0."""
    check_run("query", x.batch, x.epochs)
    at = np.array([[x.batch, x.epochs]], dtype=np.float64)
    value = float(metrics_at(params.curves, at)[0])
    gap = gap_at(np.array(params.curves.log_batches), math.log(x.batch))
    spread = float(value_at(params.spread, at[:, 1])[0])
    half = spread * math.sqrt(params.within + params.between * gap) + _beyond_epochs(params.curves, x)
    return Interval(value=value, low=max(value - half, 0.0), high=value + half)


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


#: Error variances of a curve that are tried, in units of the variance over one e-fold of batch size.
NUGGETS = (0.0, 0.1, 0.3, 1.0)
#: Taken while fewer than two inner batch sizes can be left out.
_DEFAULT_NUGGET = 0.1
#: What a batch size with a single row adds to its error variance; with r rows 1/r of it.
_ROW_NUGGET = 0.05
#: Times that curves are fitted anew without some batch sizes.
_MAX_FOLDS = 20
#: Above this number of batch sizes neighbours share a curve: the cost of weights grows with their third power.
_MAX_BATCHES = 40


class MetricCurves(Fact, frozen=True):
    """A curve and a number of rows per batch size (in ln B, rising), and the error variance of a curve."""

    log_batches: tuple[float, ...]
    curves: tuple[Curve, ...]
    rows: tuple[int, ...]
    nugget: float = _DEFAULT_NUGGET


#: Rows that were left out, and curves of the others.
LeftOut = tuple[FloatArray, MetricCurves]


def fit_curves(rows: FloatArray, shape: Shape) -> tuple[MetricCurves, list[LeftOut]]:
    """Curves of rows (batch, epochs, metric), and those with each batch size left out in turn."""
    left_out = [(rows[held], curves_of(rows[~held], shape)) for held in batch_folds(rows)]
    nugget = _best_nugget(left_out)
    return (
        curves_of(rows, shape, nugget),
        [(held, replace(curves, nugget=nugget)) for held, curves in left_out],
    )


def batch_folds(rows: FloatArray) -> Folds:
    """Masks of the rows of each batch size; of several batch sizes at once where there are many."""
    return folds_of(rows[:, 0], _MAX_FOLDS)


def metrics_at(fitted: MetricCurves, x: FloatArray) -> FloatArray:
    """Metrics for rows of batch and epochs."""
    at, of_row = np.unique(np.log(x[:, 0]), return_inverse=True)
    nugget = fitted.nugget + _ROW_NUGGET / np.array(fitted.rows)
    weights = weights_at(np.array(fitted.log_batches), nugget, at)[:, of_row]
    heights = np.stack([value_at(curve, x[:, 1]) for curve in fitted.curves])
    return np.asarray((weights * heights).sum(axis=0))


def curves_of(rows: FloatArray, shape: Shape, nugget: float = _DEFAULT_NUGGET) -> MetricCurves:
    """Curves of rows with a given error variance."""
    pooled = fit_curve(rows[:, 1], rows[:, 2], shape)
    epochs = np.array(pooled.x)
    base, weight = np.array(pooled.y), np.ones(len(epochs))
    level = _levels(np.log(rows[:, 0]))
    log_batches, counts = np.unique(level, return_counts=True)
    curves = []
    for log_batch in log_batches:
        of_batch = rows[level == log_batch]
        own = fit_curve(of_batch[:, 1], of_batch[:, 2], shape)
        off = np.array(own.y) - value_at(pooled, np.array(own.x))
        moved = base + np.interp(np.log(epochs), np.log(own.x), off)
        moved = np.clip(moved, rows[:, 2].min(), rows[:, 2].max())  # a share is no more than all of it
        curves.append(Curve(x=pooled.x, y=tuple(shaped(moved, weight, shape).tolist())))
    return MetricCurves(
        log_batches=tuple(log_batches.tolist()),
        curves=tuple(curves),
        rows=tuple(counts.tolist()),
        nugget=nugget,
    )


def _levels(log_batch: FloatArray) -> FloatArray:
    """ln B of each row; where there are too many, that of the nearest of evenly chosen ones."""
    distinct = np.unique(log_batch)
    if len(distinct) <= _MAX_BATCHES:
        return log_batch
    kept = distinct[np.linspace(0, len(distinct) - 1, _MAX_BATCHES).astype(np.int64)]
    middles = (kept[1:] + kept[:-1]) / 2
    return np.asarray(kept[np.searchsorted(middles, log_batch)])


def _best_nugget(left_out: Sequence[LeftOut]) -> float:
    """The one with the least error at inner batch sizes; beyond the ends nearest and mean are both guesses."""
    inner = [(rows[_between(rows, curves)], curves) for rows, curves in left_out]
    inner = [(rows, curves) for rows, curves in inner if len(rows)]
    if len(inner) < 2:
        return _DEFAULT_NUGGET

    def error(nugget: float) -> float:
        return sum(
            float(np.abs(rows[:, 2] - metrics_at(replace(curves, nugget=nugget), rows)).sum())
            for rows, curves in inner
        )

    return min(NUGGETS, key=error)


def _between(rows: FloatArray, curves: MetricCurves) -> npt.NDArray[np.bool_]:
    log_batch = np.log(rows[:, 0])
    return np.asarray((curves.log_batches[0] < log_batch) & (log_batch < curves.log_batches[-1]))
