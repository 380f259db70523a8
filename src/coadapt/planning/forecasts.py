"""Forecasts from samples: pass times and metrics, with gradient accumulation and run-to-run scatter.

``SampleForecast`` fits pass times that depend on nodes, metrics over epochs of work, and other GPU types by their
datasheets. Two forecasts wrap another one:

``AccumulatedForecast`` adds options that accumulate gradients to a forecast of plain steps. With s extra backward
passes of m examples on each of k replicas a step takes s T_grad(m) + T(m, k): only the last pass is followed by
synchronisation. T_grad is what one replica alone takes. In seconds of a pass over the data, P(batch, replicas) without
accumulation:

    P_s = (s P(m, 1) / k + P(m k, k)) / (s + 1)

An option that was itself measured keeps its measured time.

``ScatteredForecast`` adds the scatter of the metric between runs and between passes: a few short runs follow their own
curve closely, the next run will not. The standard deviation of the metric grows by the scatter, and so does that of the
number of passes: by as many as a target higher by the scatter would need.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError
from coadapt.planning.option_outlook import Z80, Columns, Forecast, Passes
from coadapt.planning.problem import Evidence, Option
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import epoch_time, final_metric
from coadapt.prediction.samples import passes as work_epochs
from coadapt.prediction.samples.epoch_time import EpochParams
from coadapt.prediction.samples.final_metric import MetricParams, metrics_at
from coadapt.prediction.samples.passes import Work, passes_to
from coadapt.prediction.samples.public_scaling import ScalingPrior
from coadapt.prediction.samples.sample_table import (
    EpochTable,
    MetricSample,
    MetricTable,
    metric_columns,
    metric_table,
)
from coadapt.prediction.step_time.gpu_projection import SCATTER, datasheet_speed

#: Lower bound of the spread of a time: the fit estimates it from samples of the same options, which is optimistic.
_LEAST_SD = 0.01


class SampleForecast:
    """Implements ``Forecast``.

    ``work``: how passes become work, where that is known better than the metrics tell it. ``scaling``: how pass times change
    with workers in general, if not as in public runs.
    """

    def __init__(
        self, evidence: Evidence, work: Work | None = None, scaling: ScalingPrior | None = None
    ) -> None:
        known = {name: table for name, table in evidence.epochs.items() if table.samples}
        if not known:
            raise InputError("pass times are unknown: give samples of past runs, or measure with --profile")
        self._times = {name: _times(table, scaling) for name, table in known.items()}
        #: The type that others are projected from: sampled most.
        self._source = max(known, key=lambda name: (len(known[name].samples), name))
        self._given_work, self._table = work, evidence.metrics
        self._metric: MetricParams | None = None
        self._work: Work = work or work_epochs.PowerLaw(initial=1.0)
        if evidence.metrics is not None and evidence.metrics.samples:
            self._work, self._metric = _metrics(evidence.metrics, work)

    @property
    def projected(self) -> bool:
        """Whether an answer may rest on datasheets."""
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
                "the metric is unknown: give past runs with the metric, or plan without a target"
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


def _times(table: EpochTable, scaling: ScalingPrior | None) -> EpochParams:
    params = epoch_time.fit(table, scaling=scaling)
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
        MetricSample(batch=round(batch), epochs=epochs, metric=metric)
        for (batch, _, metric), epochs in zip(rows.tolist(), done.tolist(), strict=True)
    ]
    params = final_metric.fit(metric_table(moved, higher_is_better=table.higher_is_better))
    assert params is not None  # the table is not empty
    return work, params


class AccumulatedForecast:
    """Implements ``Forecast``. ``measured``: (GPU type, batch, replicas) whose pass time was seen."""

    def __init__(self, plain: Forecast, measured: Collection[tuple[str, int, int]] = ()) -> None:
        self._plain, self._measured = plain, frozenset(measured)

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        seconds, sd = self._plain.pass_s(columns)
        some = np.array(
            [i for i, option in enumerate(columns.options) if self._split(option)], dtype=np.int64
        )
        if not some.size:
            return seconds, sd
        options = [columns.options[i] for i in some]
        parts = np.array([option.accumulation + 1 for option in options], dtype=np.float64)
        local = np.array(
            [math.ceil(o.batch / o.replicas / (o.accumulation + 1)) for o in options], dtype=np.float64
        )
        replicas = columns.replicas[some]
        alone, alone_sd = self._plain.pass_s(
            _at(columns, some, local, np.ones(len(some)), np.ones(len(some)))
        )
        synced, synced_sd = self._plain.pass_s(
            _at(columns, some, local * replicas, replicas, columns.nodes[some])
        )
        # a step with synchronisation is not shorter than one without
        alone = np.minimum(alone / replicas, synced)
        seconds, sd = seconds.copy(), sd.copy()
        seconds[some] = ((parts - 1) * alone + synced) / parts
        sd[some] = np.maximum(alone_sd, synced_sd)
        return seconds, sd

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        return self._plain.passes_to(target, batch)

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return self._plain.passes_for(epochs, batch)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        return self._plain.metric_after(batch, passes)

    def _split(self, option: Option) -> bool:
        return (
            bool(option.accumulation)
            and (option.gpu_type, option.batch, option.replicas) not in self._measured
        )


def _at(
    columns: Columns, some: npt.NDArray[np.int64], batch: FloatArray, replicas: FloatArray, nodes: FloatArray
) -> Columns:
    return Columns(
        options=[columns.options[i] for i in some],
        gpu_type=columns.gpu_type[some],
        replicas=replicas,
        nodes=nodes,
        batch=batch,
        price_s=columns.price_s[some],
    )


#: A run's metrics over its passes.
Curve = Sequence[tuple[float, float]]


class ScatteredForecast:
    """Implements ``Forecast``. ``scatter``: standard deviation of the metric between runs alike."""

    def __init__(self, plain: Forecast, scatter: float, *, higher_is_better: bool) -> None:
        self._plain, self._scatter = plain, scatter
        self._sign = 1.0 if higher_is_better else -1.0

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        return self._plain.pass_s(columns)

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        found = self._plain.passes_to(target, batch)
        if self._scatter <= 0:
            return found
        harder = self._plain.passes_to(target + self._sign * self._scatter, batch)
        later = np.log(np.maximum(harder.needed / found.needed, 1.0))
        return Passes(found.needed, np.hypot(found.log_sd, later), found.reached)

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return self._plain.passes_for(epochs, batch)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        found = self._plain.metric_after(batch, passes)
        return None if found is None else (found[0], np.hypot(found[1], self._scatter))


def scatter_of(runs: Iterable[tuple[int, Curve]]) -> float:
    """Standard deviation of the metric between runs, from (batch, curve) of each run.

    It compares each pass with the line through its neighbours, and two runs of one batch size with each other, late in
    the rise. For independent values of variance v the first difference is a - 2b + c, of variance 6 v, the second a - b,
    of variance 2 v.
    """
    known = [(batch, dict(curve)) for batch, curve in runs if curve]
    values = [value for _, curve in known for value in curve.values()]
    if not values:
        return 0.0
    middle = (min(values) + max(values)) / 2
    ends = [value for _, curve in known for _, value in sorted(curve.items())[-1:]]
    rising = float(np.mean(ends)) >= middle
    terms = []
    for at, (batch, curve) in enumerate(known):
        late = sorted((p, v) for p, v in curve.items() if (v >= middle) == rising)
        values_late = np.array([v for _, v in late])
        if len(late) > 2:
            terms += list((values_late[:-2] - 2 * values_late[1:-1] + values_late[2:]) ** 2 / 6)
        for other_batch, other in known[at + 1 :]:
            if other_batch == batch:
                terms += [(v - other[p]) ** 2 / 2 for p, v in late if p in other]
    return float(np.sqrt(np.mean(terms))) if terms else 0.0
