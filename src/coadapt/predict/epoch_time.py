"""Time of one pass over the data by (batch, workers, nodes), from a user's own samples: our default.

    ln(B x epoch time) = form(B, K, n; theta)  +  residual(B/K, K, n)

The form (``epoch_form``) carries over to what was never sampled, the residual (``epoch_residual``) corrects it near
what was. Both come with an expected spread: open parameters, distance from the samples, noise, and a drift of
the form itself beyond their range. The 80% interval is that spread times a factor from cross-validation over whole
configurations (``conformal``), with theta fitted anew and the sizes and lengths of the residual kept. Errors of
times are relative, so intervals are too. Works from one sample on; below ten the params say ``few``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coadapt.model import Fact
from coadapt.predict._base import Estimate, FloatArray, relative_interval
from coadapt.predict.conformal import folds_of, spread_factor
from coadapt.predict.epoch_form import PARAMETERS, fit_form, form_variance, log_time
from coadapt.predict.epoch_residual import Residual, conditioned, fit_residual, mean_and_variance
from coadapt.predict.samples import EpochTable, check_configuration, epoch_columns, nodes_of
from coadapt.predict.samples import observe_epoch as observe

__all__ = ["EpochParams", "EpochQuery", "fit", "fit_rows", "log_widths_at", "observe", "predict", "times_at"]

#: Above so many samples an even choice of them is fitted: the residual costs their third power.
MAX_ROWS = 400
#: No interval is wider than this factor either way: beyond it the number says nothing anyhow.
_WIDEST = np.log(100.0)
#: Spread by which the form itself is wrong per e-fold of batch per GPU or workers beyond the samples.
_DRIFT = 0.3


class EpochQuery(Fact, frozen=True):
    """A configuration asked about; ``nodes`` None: packed."""

    batch: int
    workers: int
    nodes: int | None = None


class EpochParams(Fact, frozen=True, tag=True):
    """The form, its residual, and the factor from expected spread to 80% interval.

    ``few``: fewer samples than the form has parameters; the rest of the answer is the prior's.
    """

    gpus_per_node: int
    theta: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    residual: Residual
    factor: float = 1.0
    few: bool = False


def fit(table: EpochTable, prior: EpochParams | None = None) -> EpochParams | None:
    """The model with calibrated intervals; ``prior`` while the table is empty. Memoised."""
    return _fit(table) if table.samples else prior


@lru_cache(maxsize=256)
def _fit(table: EpochTable) -> EpochParams:
    rows = epoch_columns(table)
    if len(rows) > MAX_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64)]
    fitted = fit_rows(rows, table.gpus_per_node)
    errors = [np.zeros(0)]
    for held in folds_of(rows[:, :3]):
        part = fit_rows(rows[~held], table.gpus_per_node, near=fitted)
        log_times, spread = _log_times(part, rows[held])
        errors.append(np.abs(np.log(rows[held, 3]) - log_times) / spread)
    return EpochParams(
        gpus_per_node=fitted.gpus_per_node,
        theta=fitted.theta,
        covariance=fitted.covariance,
        residual=fitted.residual,
        factor=spread_factor(np.concatenate(errors)),
        few=len(rows) < PARAMETERS,
    )


def fit_rows(rows: FloatArray, gpus_per_node: int, near: EpochParams | None = None) -> EpochParams:
    """The model without calibration; the search starts at, and keeps sizes and lengths of, ``near``."""
    target = np.log(rows[:, 3] * rows[:, 0])
    theta, covariance = fit_form(rows, target, None if near is None else np.array(near.theta))
    left = target - log_time(theta, rows)
    points = _points(rows)
    residual = fit_residual(points, left) if near is None else conditioned(points, left, near.residual.logs)
    return EpochParams(
        gpus_per_node=gpus_per_node,
        theta=tuple(theta.tolist()),
        covariance=tuple(tuple(row) for row in covariance.tolist()),
        residual=residual,
    )


def times_at(params: EpochParams, x: FloatArray) -> FloatArray:
    """Epoch times in seconds for rows of batch, workers, nodes."""
    return np.asarray(np.exp(_log_times(params, x)[0]))


def log_widths_at(params: EpochParams, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the epoch times and half of their 80% intervals, for rows of batch, workers, nodes: ``predict`` for many."""
    log_times, spread = _log_times(params, x)
    return log_times, np.minimum(params.factor * spread, _WIDEST)


def predict(params: EpochParams, x: EpochQuery) -> Estimate:
    """Seconds of one pass over the data."""
    check_configuration("query", x.batch, x.workers, x.nodes)
    nodes = nodes_of(x.workers, x.nodes, params.gpus_per_node)
    log_times, spread = _log_times(params, np.array([[x.batch, x.workers, nodes]], dtype=np.float64))
    return relative_interval(float(np.exp(log_times[0])), min(params.factor * float(spread[0]), _WIDEST))


def _log_times(params: EpochParams, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the epoch times and their expected spread."""
    theta, covariance = np.array(params.theta), np.array(params.covariance)
    left, variance = mean_and_variance(params.residual, _points(x))
    beyond = _beyond(np.array(params.residual.points), _points(x))
    spread = np.sqrt(variance + form_variance(theta, covariance, x) + (_DRIFT * beyond) ** 2)
    return log_time(theta, x) + left - np.log(x[:, 0]), spread


def _beyond(sampled: FloatArray, points: FloatArray) -> FloatArray:
    """Distance from the box of the samples in ln m and ln K."""
    low, high = sampled[:, :2].min(axis=0), sampled[:, :2].max(axis=0)
    outside = np.maximum(np.maximum(low - points[:, :2], points[:, :2] - high), 0.0)
    return np.asarray(np.sqrt((outside**2).sum(axis=1)))


def _points(x: FloatArray) -> FloatArray:
    """Coordinates of the residual: ln m, ln K, class of nodes (one, two, more)."""
    return np.stack([np.log(x[:, 0] / x[:, 1]), np.log(x[:, 1]), np.minimum(x[:, 2], 3.0)], axis=1)
