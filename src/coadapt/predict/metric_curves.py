"""Metric by (batch, epochs): one isotonic curve per batch size, joined in log batch.

    f(B, e) = sum_i w_i(ln B) c_i(e),   c_i = PAVA of  pooled(e) + (iso_i - pooled)(e)

Rising in e where higher is better, else falling. iso_i is fitted to the rows of batch size B_i alone; the pooled
(epoch-only) curve lends its shape where B_i has few rows, the difference being linear in ln e between them
and constant beyond. The weights are those of ``between_batches``; how much they shrink towards the mean over batch
sizes is chosen by leaving out each inner batch size in turn. No shape is imposed on B: at equal epochs of
work there is often none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Fact
from coadapt.predict._base import FloatArray
from coadapt.predict.between_batches import weights_at
from coadapt.predict.conformal import Folds, folds_of
from coadapt.predict.isotonic import Curve, Shape, fit_curve, shaped, value_at

#: Error variances of a curve that are tried, in units of the variance over one e-fold of batch size.
NUGGETS = (0.0, 0.1, 0.3, 1.0)
#: Taken while fewer than two inner batch sizes can be left out.
_DEFAULT_NUGGET = 0.1
#: What a batch size with a single row adds to its error variance; with r rows 1/r of it.
_ROW_NUGGET = 0.05
#: Times that curves are fitted anew without some batch sizes.
_MAX_FOLDS = 20
#: Above so many batch sizes neighbours share a curve: no user sees a difference, weights cost their third power.
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
    """Masks of the rows of each batch size; above so many, of several batch sizes at once."""
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
