"""Time of one pass over the data by (batch, workers, nodes), from a user's own samples: our default.

    ln(B x epoch time) = form(B, K, n; theta)  +  residual(B/K, K, n)

The form (``epoch_form``) carries over to what was never sampled, the residual (``epoch_residual``) corrects it near
what was. The form is fitted under the residual's covariance (kriging with a trend), and forms that the samples leave possible are drawn: how far they
differ, after the residual has corrected each, is how unsure the form is there. To it comes a drift of the form itself beyond the samples' range. The 80%
interval is the spread times a factor from cross-validation over whole configurations (``conformal``); that of the form is never taken for less than it says:
samples that are held out lie among others. Errors of times are relative, so intervals are too. Works from one sample on; below ten the params say ``few``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coadapt.model import Fact
from coadapt.predict._base import Estimate, FloatArray, relative_interval
from coadapt.predict.conformal import folds_of, spread_factors
from coadapt.predict.epoch_form import PARAMETERS, fit_form, log_time, plausible_forms
from coadapt.predict.epoch_residual import (
    Residual,
    cautious,
    conditioned,
    factor_of,
    fit_residual,
    mean_and_variance,
)
from coadapt.predict.samples import EpochTable, check_configuration, epoch_columns, nodes_of
from coadapt.predict.samples import observe_epoch as observe

__all__ = ["EpochParams", "EpochQuery", "fit", "fit_rows", "log_widths_at", "observe", "predict", "times_at"]

#: Above so many samples an even choice of them is fitted: the residual costs their third power.
MAX_ROWS = 400
#: No interval is wider than this factor either way: beyond it the number says nothing anyhow.
_WIDEST = np.log(100.0)
#: Spread by which the form itself is wrong per e-fold of batch per GPU or workers beyond the samples.
_DRIFT = 0.3
#: Forms that stand for what the samples leave possible; half of an 80% interval in standard deviations.
_FORMS, _NORMAL = 24, 1.2816
#: ln workers at which the factor is taken, and how far an error tells of others: how even times are on many workers says little of few.
_KNOTS, _REACH = np.log(2.0 ** np.arange(0, 11)), 0.7


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
    #: Other parameters that the samples leave possible.
    forms: tuple[tuple[float, ...], ...]
    residual: Residual
    #: Batch, workers and nodes of the samples.
    sampled: tuple[tuple[float, float, float], ...]
    #: By ln workers, at ``_KNOTS``.
    factors: tuple[float, ...] = (1.0,) * len(_KNOTS)
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
    errors, places = [np.zeros(0)], [np.zeros(0)]
    for held in folds_of(rows[:, :3]):
        part = fit_rows(rows[~held], table.gpus_per_node, near=fitted)
        log_times, left, form = _log_times(part, rows[held])
        errors.append(np.abs(np.log(rows[held, 3]) - log_times) / np.hypot(left, form))
        places.append(np.log(rows[held, 1]))
    return EpochParams(
        gpus_per_node=fitted.gpus_per_node,
        theta=fitted.theta,
        forms=fitted.forms,
        residual=fitted.residual,
        sampled=fitted.sampled,
        factors=tuple(
            spread_factors(np.concatenate(errors), np.concatenate(places), _KNOTS, _REACH).tolist()
        ),
        few=len(rows) < PARAMETERS,
    )


def fit_rows(rows: FloatArray, gpus_per_node: int, near: EpochParams | None = None) -> EpochParams:
    """The model without calibration; the search starts at, and keeps sizes and lengths of, ``near``."""
    target = np.log(rows[:, 3] * rows[:, 0])
    points = _points(rows)
    if near is None:
        theta = fit_form(rows, target)
        logs = fit_residual(points, target - log_time(theta, rows)).logs
    else:
        theta, logs = np.array(near.theta), near.residual.logs
    # what is left over goes together for the samples of one worker count: a form fitted as if it did not would take their offset for its own
    factor = factor_of(conditioned(points, np.zeros(len(rows)), cautious(logs)))
    theta = fit_form(rows, target, theta, factor)
    if near is None:
        forms = plausible_forms(rows, target, theta, factor, _FORMS)
    else:  # a fold leaves open what all samples do
        forms = np.array(near.forms) - np.array(near.theta) + theta
    return EpochParams(
        gpus_per_node=gpus_per_node,
        theta=tuple(theta.tolist()),
        forms=tuple(tuple(row) for row in forms.tolist()),
        residual=conditioned(points, target - log_time(theta, rows), logs),
        sampled=tuple((b, k, n) for b, k, n in rows[:, :3].tolist()),
    )


def times_at(params: EpochParams, x: FloatArray) -> FloatArray:
    """Epoch times in seconds for rows of batch, workers, nodes."""
    return np.asarray(np.exp(_log_times(params, x)[0]))


def log_widths_at(params: EpochParams, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the epoch times and half of their 80% intervals, for rows of batch, workers, nodes: ``predict`` for many."""
    log_times, left, form = _log_times(params, x)
    # samples that were held out lie among others: what they tell of is the residual, and little of the form far from them
    factor = np.interp(np.log(x[:, 1]), _KNOTS, params.factors)
    half = np.hypot(factor * left, np.maximum(factor, _NORMAL) * form)
    return log_times, np.minimum(half, _WIDEST)


def predict(params: EpochParams, x: EpochQuery) -> Estimate:
    """Seconds of one pass over the data."""
    check_configuration("query", x.batch, x.workers, x.nodes)
    nodes = nodes_of(x.workers, x.nodes, params.gpus_per_node)
    log_times, half = log_widths_at(params, np.array([[x.batch, x.workers, nodes]], dtype=np.float64))
    return relative_interval(float(np.exp(log_times[0])), float(half[0]))


def _log_times(params: EpochParams, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln of the epoch times, the spread of what the form leaves over, and that of the form."""
    points = _points(x)
    theta, forms, sampled = np.array(params.theta), np.array(params.forms), np.array(params.sampled)
    left, variance, weights = mean_and_variance(params.residual, points)
    middle = log_time(theta, x)
    # another form is another one at the samples as well, and the residual makes up for it near them
    there = log_time(theta, sampled)
    others = np.stack([log_time(f, x) - middle - weights @ (log_time(f, sampled) - there) for f in forms])
    beyond = _DRIFT * _beyond(np.array(params.residual.points), points)
    form = np.sqrt((others**2).mean(axis=0) + beyond**2)
    return middle + others.mean(axis=0) + left - np.log(x[:, 0]), np.sqrt(variance), form


def _beyond(sampled: FloatArray, points: FloatArray) -> FloatArray:
    """Distance from the box of the samples in ln m and ln K."""
    low, high = sampled[:, :2].min(axis=0), sampled[:, :2].max(axis=0)
    outside = np.maximum(np.maximum(low - points[:, :2], points[:, :2] - high), 0.0)
    return np.asarray(np.sqrt((outside**2).sum(axis=1)))


def _points(x: FloatArray) -> FloatArray:
    """Coordinates of the residual: ln m, ln K, class of nodes (one, two, more)."""
    return np.stack([np.log(x[:, 0] / x[:, 1]), np.log(x[:, 1]), np.minimum(x[:, 2], 3.0)], axis=1)
