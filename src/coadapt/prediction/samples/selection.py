"""Which method predicts *these* samples better: cross-validated, picked and named.

Two methods for each question, the default and the published one. Each predicts groups of samples it was not
fitted to: whole configurations for epoch times; whole batch sizes for metrics, because rows of one run
resemble each other and a user asks about batch sizes never run. Error: MRE = sum |error| / sum of true values.
The published method is taken only where it is strictly better; with a single group there is nothing to
compare, the default is taken, and the error is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import epoch_time, final_metric, isotonic
from coadapt.prediction.samples.conformal import Folds, folds_of
from coadapt.prediction.samples.epoch_time import EpochParams, EpochQuery
from coadapt.prediction.samples.final_metric import MetricParams, MetricQuery
from coadapt.prediction.samples.isotonic import EPOCH_SHAPES, WeightedParams, metric_shapes
from coadapt.prediction.samples.sample_table import (
    EpochTable,
    MetricTable,
    check_configuration,
    check_run,
    epoch_columns,
    metric_columns,
)

NODE_AWARE = "node-aware step time with residual"
PER_BATCH = "isotonic per batch size"
PUBLISHED = "weighted isotonic (Liang et al. 2022)"

_FOLDS = 5

#: Values at ``x`` after a fit to ``rows``, whose last column is the target.
Method = Callable[[FloatArray, FloatArray], FloatArray]


class Chosen(Fact, frozen=True):
    """The method taken, its cross-validated MRE, and that of every method, best first."""

    name: str
    error: float | None = None
    errors: tuple[tuple[str, float], ...] = ()


class EpochChoice(Fact, frozen=True):
    """Epoch time by the better method."""

    chosen: Chosen
    params: EpochParams | WeightedParams


class MetricChoice(Fact, frozen=True):
    """Metric by the better method."""

    chosen: Chosen
    params: MetricParams | WeightedParams


def choose(methods: Mapping[str, Method], rows: FloatArray, folds: Folds) -> Chosen:
    """The method with the least error on what the folds hold out; the first named one on a tie."""
    if not folds:
        return Chosen(name=next(iter(methods)))
    total = max(sum(float(rows[held, -1].sum()) for held in folds), 1e-300)
    errors = {
        name: sum(
            float(np.abs(rows[held, -1] - method(rows[~held], rows[held, :-1])).sum()) for held in folds
        )
        / total
        for name, method in methods.items()
    }
    ranked = tuple(sorted(errors.items(), key=lambda pair: pair[1]))
    return Chosen(name=ranked[0][0], error=ranked[0][1], errors=ranked)


def fit_epoch(table: EpochTable, prior: EpochChoice | None = None) -> EpochChoice | None:
    """Fit epoch times by the better method; ``prior`` while the table is empty. Memoised."""
    return _fit_epoch(table) if table.samples else prior


@lru_cache(maxsize=256)
def _fit_epoch(table: EpochTable) -> EpochChoice:
    rows = epoch_columns(table)
    folds = folds_of(rows[:, :3], _FOLDS)
    chosen = choose(epoch_methods(table.gpus_per_node), rows, folds)
    if chosen.name == PUBLISHED:
        return EpochChoice(
            chosen=chosen,
            params=isotonic.fit_held_out(rows[:, :2], rows[:, 3], EPOCH_SHAPES, folds),
        )
    params = epoch_time.fit(table)
    assert params is not None  # the table is not empty
    return EpochChoice(chosen=chosen, params=params)


def fit_metric(table: MetricTable, prior: MetricChoice | None = None) -> MetricChoice | None:
    """Fit metrics by the better method; ``prior`` while the table is empty. Memoised."""
    return _fit_metric(table) if table.samples else prior


@lru_cache(maxsize=256)
def _fit_metric(table: MetricTable) -> MetricChoice:
    rows = metric_columns(table)
    folds = final_metric.batch_folds(rows)
    chosen = choose(metric_methods(table.higher_is_better), rows, folds)
    if chosen.name == PUBLISHED:
        shapes = metric_shapes(table.higher_is_better)
        params = isotonic.fit_held_out(rows[:, :2], rows[:, 2], shapes, folds)
        return MetricChoice(chosen=chosen, params=params)
    default = final_metric.fit(table)
    assert default is not None  # the table is not empty
    return MetricChoice(chosen=chosen, params=default)


def predict_epoch(choice: EpochChoice, x: EpochQuery) -> Interval:
    """Seconds of one pass over the data, by the method chosen."""
    if isinstance(choice.params, EpochParams):
        return epoch_time.predict(choice.params, x)
    check_configuration("query", x.batch, x.workers, x.nodes)
    return isotonic.predict(choice.params, (x.batch, x.workers))


def predict_metric(choice: MetricChoice, x: MetricQuery) -> Interval:
    """Metric at the end of a run, by the method chosen."""
    if isinstance(choice.params, MetricParams):
        return final_metric.predict(choice.params, x)
    check_run("query", x.batch, x.epochs)
    return isotonic.predict(choice.params, (x.batch, x.epochs))


def epoch_methods(gpus_per_node: int) -> dict[str, Method]:
    """Methods that predict epoch times, the default first."""

    def node_aware(rows: FloatArray, x: FloatArray) -> FloatArray:
        return epoch_time.times_at(epoch_time.fit_rows(rows, gpus_per_node), x)

    def published(rows: FloatArray, x: FloatArray) -> FloatArray:
        fitted = isotonic.fit_rows(rows[:, :2], rows[:, 3], EPOCH_SHAPES)
        return isotonic.values_at(fitted, x[:, :2])

    return {NODE_AWARE: node_aware, PUBLISHED: published}


def metric_methods(higher_is_better: bool) -> dict[str, Method]:
    """Methods that predict metrics, the default first."""

    def per_batch(rows: FloatArray, x: FloatArray) -> FloatArray:
        curves, _ = final_metric.fit_curves(rows, final_metric.direction(higher_is_better))
        return final_metric.metrics_at(curves, x)

    def published(rows: FloatArray, x: FloatArray) -> FloatArray:
        fitted = isotonic.fit_rows(rows[:, :2], rows[:, 2], metric_shapes(higher_is_better))
        return isotonic.values_at(fitted, x)

    return {PER_BATCH: per_batch, PUBLISHED: published}
