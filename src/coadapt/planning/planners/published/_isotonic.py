"""Forecasts of the published planners: weighted isotonic curves (``prediction.samples.isotonic``), without a spread."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coadapt.errors import InputError
from coadapt.planning.option_outlook import Columns, Passes
from coadapt.planning.problem import Evidence
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import isotonic
from coadapt.prediction.samples.isotonic import EPOCH_SHAPES, WeightedParams, metric_shapes, values_at
from coadapt.prediction.samples.sample_table import EpochTable, MetricTable, epoch_columns, metric_columns

_STEPS = 2000


class PublishedForecast:
    """Implements ``Forecast`` as Liang et al. 2022 predict; GPU types are not told apart but by their own samples."""

    def __init__(self, evidence: Evidence) -> None:
        known = {name: table for name, table in evidence.epochs.items() if table.samples}
        if not known:
            raise InputError("no pass time is known; give samples of past runs, or measure with --profile")
        self._times = {name: _times(table) for name, table in known.items()}
        self._source = max(known, key=lambda name: (len(known[name].samples), name))
        table = evidence.metrics
        self._higher = table is None or table.higher_is_better
        self._metric = _metric(table) if table is not None and table.samples else None

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        found = np.empty(len(columns.batch))
        x = np.stack([columns.batch, columns.replicas], axis=1)
        for name in np.unique(columns.gpu_type):
            mine = columns.gpu_type == name
            found[mine] = values_at(self._times.get(str(name), self._times[self._source]), x[mine])
        return np.maximum(found, 1e-9), np.zeros(len(found))

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``: the fewest that reach it, the most that were sampled where none does."""
        params = self._known_metric()
        curve = params.curves[1]
        epochs = np.linspace(curve.x[0], curve.x[-1], _STEPS)
        sign = 1.0 if self._higher else -1.0
        sizes, of_option = np.unique(batch, return_inverse=True)
        needed, reached = np.empty(len(sizes)), np.empty(len(sizes))
        for i, size in enumerate(sizes):
            good = (
                sign * values_at(params, np.stack([np.full(_STEPS, size), epochs], axis=1)) >= sign * target
            )
            needed[i], reached[i] = epochs[int(np.argmax(good))] if good.any() else epochs[-1], good.any()
        return Passes(needed[of_option], np.zeros(len(batch)), reached[of_option])

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``: an epoch is a pass here."""
        return np.full(len(batch), epochs)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        if self._metric is None:
            return None
        return values_at(self._metric, np.stack([batch, passes], axis=1)), np.zeros(len(batch))

    def longest(self) -> float:
        """Most passes that were sampled."""
        return float(self._known_metric().curves[1].x[-1])

    def _known_metric(self) -> WeightedParams:
        if self._metric is None:
            raise InputError(
                "nothing is known of the metric: give past runs with it, or ask without a target"
            )
        return self._metric


@lru_cache(maxsize=64)
def _times(table: EpochTable) -> WeightedParams:
    rows = epoch_columns(table)
    return isotonic.fit_rows(rows[:, :2], rows[:, 3], EPOCH_SHAPES)


@lru_cache(maxsize=64)
def _metric(table: MetricTable) -> WeightedParams:
    rows = metric_columns(table)
    return isotonic.fit_rows(rows[:, :2], rows[:, 2], metric_shapes(table.higher_is_better))
