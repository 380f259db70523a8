"""Our forecasts from samples: pass times aware of nodes, metrics over epochs of work, other GPU types by their datasheets."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coadapt.configure.outlook import Z80, Columns, Passes
from coadapt.configure.problem import Evidence
from coadapt.errors import InputError
from coadapt.predict import epoch_time, final_metric, work_epochs
from coadapt.predict._base import FloatArray
from coadapt.predict.epoch_time import EpochParams
from coadapt.predict.final_metric import MetricParams
from coadapt.predict.metric_curves import metrics_at
from coadapt.predict.passes_to import passes_to
from coadapt.predict.projection import SCATTER, datasheet_speed
from coadapt.predict.samples import EpochTable, MetricSample, MetricTable, metric_columns, metric_table
from coadapt.predict.work_epochs import Work

#: The fit tells the spread, from samples that the same options gave; nobody knows a time better than this.
_LEAST_SD = 0.01


class SampleForecast:
    """Implements ``Forecast``. ``work``: how passes become work, where that is known better than the metrics tell it."""

    def __init__(self, evidence: Evidence, work: Work | None = None) -> None:
        known = {name: table for name, table in evidence.epochs.items() if table.samples}
        if not known:
            raise InputError("no pass time is known; give samples of past runs, or measure with --profile")
        self._times = {name: _times(table) for name, table in known.items()}
        #: The type that others are projected from: sampled most.
        self._source = max(known, key=lambda name: (len(known[name].samples), name))
        self._given_work, self._table = work, evidence.metrics
        self._metric: MetricParams | None = None
        self._work: Work = work or work_epochs.PowerLaw(initial=1.0)
        if evidence.metrics is not None and evidence.metrics.samples:
            self._work, self._metric = _metrics(evidence.metrics, work)

    @property
    def projected(self) -> bool:
        """True if an answer may rest on datasheets."""
        return len(self._times) > 0

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        seconds, sd = np.empty(len(columns.batch)), np.empty(len(columns.batch))
        rows = np.stack([columns.batch, columns.replicas, columns.nodes], axis=1)
        for name in np.unique(columns.gpu_type):
            mine = columns.gpu_type == name
            params = self._times.get(str(name), self._times[self._source])
            log_s, half = epoch_time.log_widths_at(params, rows[mine])
            seconds[mine], sd[mine] = np.exp(log_s), np.maximum(half / Z80, _LEAST_SD)
            if str(name) not in self._times:
                speed = datasheet_speed(self._source, str(name))
                seconds[mine] /= speed.ratio
                sd[mine] = np.hypot(sd[mine], SCATTER[speed.basis])
        return seconds, sd

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``"""
        if self._metric is None:
            raise InputError(
                "nothing is known of the metric: give past runs with it, or ask without a target"
            )
        assert self._table is not None
        return Passes(*passes_to(self._table, target, batch, self._given_work))

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return self._work.passes(batch, np.full(len(batch), epochs))

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        if self._metric is None:
            return None
        work = self._work.work(batch, passes)
        x = np.stack([batch, work], axis=1)
        return metrics_at(self._metric.curves, x), final_metric.half_widths_at(self._metric, x) / Z80


def _times(table: EpochTable) -> EpochParams:
    params = epoch_time.fit(table)
    assert params is not None  # the table is not empty
    return params


def _metrics(table: MetricTable, work: Work | None) -> tuple[Work, MetricParams]:
    return _fitted(table) if work is None else _at_work(table, work)


@lru_cache(maxsize=64)
def _fitted(table: MetricTable) -> tuple[Work, MetricParams]:
    return _at_work(table, work_epochs.fit(table))


def _at_work(table: MetricTable, work: Work) -> tuple[Work, MetricParams]:
    """Metrics over epochs of work."""
    rows = metric_columns(table)
    done = work.work(rows[:, 0], rows[:, 1])
    moved = [
        MetricSample(batch=sample.batch, epochs=float(epochs), metric=sample.metric)
        for sample, epochs in zip(table.samples, done, strict=True)
    ]
    params = final_metric.fit(metric_table(moved, higher_is_better=table.higher_is_better))
    assert params is not None  # the table is not empty
    return work, params
