"""Our forecasts from samples: pass times aware of nodes, metrics over epochs of work, other GPU types by their datasheets."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr

from coadapt.configure.outlook import Z80, Columns, Passes
from coadapt.configure.problem import Evidence
from coadapt.errors import InputError
from coadapt.predict import epoch_time, final_metric, work_epochs
from coadapt.predict._base import FloatArray
from coadapt.predict.epoch_time import EpochParams
from coadapt.predict.final_metric import MetricParams
from coadapt.predict.metric_curves import metrics_at
from coadapt.predict.projection import SCATTER, datasheet_speed
from coadapt.predict.samples import EpochTable, MetricSample, MetricTable, metric_columns, metric_table
from coadapt.predict.work_epochs import Work


class SampleForecast:
    """Implements ``Forecast``. ``work``: how passes become work, where that is known better than the metrics tell it."""

    def __init__(self, evidence: Evidence, work: Work | None = None) -> None:
        known = {name: table for name, table in evidence.epochs.items() if table.samples}
        if not known:
            raise InputError("no pass time is known; give samples of past runs, or measure with --profile")
        self._times = {name: _times(table) for name, table in known.items()}
        #: The type that others are projected from: sampled most.
        self._source = max(known, key=lambda name: (len(known[name].samples), name))
        self._higher = evidence.metrics is None or evidence.metrics.higher_is_better
        self._metric: MetricParams | None = None
        self._longest: dict[float, float] = {}
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
            seconds[mine], sd[mine] = np.exp(log_s), half / Z80
            if str(name) not in self._times:
                speed = datasheet_speed(self._source, str(name))
                seconds[mine] /= speed.ratio
                sd[mine] = np.hypot(sd[mine], SCATTER[speed.basis])
        return seconds, sd

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``: where the curve, and its band of one standard deviation, cross the target."""
        if self._metric is None:
            raise InputError("nothing is known of the metric: give past runs with it, or ask without a target")
        sizes, of_option = np.unique(batch, return_inverse=True)
        work = np.array(self._metric.curves.curves[0].x)
        found = np.array([self._crossing(target, float(size), work) for size in sizes])
        needed, log_sd, reached = found[of_option].T
        return Passes(needed, log_sd, reached)

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

    def _crossing(self, target: float, batch: float, work: FloatArray) -> tuple[float, float, float]:
        assert self._metric is not None
        x = np.stack([np.full(len(work), batch), work], axis=1)
        sign = 1.0 if self._higher else -1.0
        value = sign * metrics_at(self._metric.curves, x)
        sd = final_metric.half_widths_at(self._metric, x) / Z80
        goal = sign * target
        reached = float(ndtr((value[-1] - goal) / sd[-1]))
        middle = _first_above(work, value, goal)
        # beyond the last sample nothing was seen: an end that is not reached counts as the last one
        late = min(_first_above(work, np.maximum.accumulate(value - sd), goal), work[-1])
        early = min(_first_above(work, np.maximum.accumulate(value + sd), goal), work[-1])
        middle = min(middle, work[-1])
        passes = self._work.passes(np.full(3, batch), np.array([early, middle, late]))
        log_sd = max(float(np.log(passes[2] / passes[0])) / 2, 0.0)
        return float(passes[1]), log_sd, reached


def _first_above(x: FloatArray, y: FloatArray, goal: float) -> float:
    """Where a rising sequence reaches the goal, linear between its points; infinite if it does not."""
    above = np.flatnonzero(y >= goal)
    if not len(above):
        return np.inf
    i = int(above[0])
    if i == 0:
        return float(x[0])
    share = (goal - y[i - 1]) / (y[i] - y[i - 1])
    return float(x[i - 1] + share * (x[i] - x[i - 1]))


def _times(table: EpochTable) -> EpochParams:
    params = epoch_time.fit(table)
    assert params is not None  # the table is not empty
    return params


def _metrics(table: MetricTable, work: Any) -> tuple[Work, MetricParams]:
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
