from __future__ import annotations

import math

import pytest

from coadapt.errors import InputError
from coadapt.prediction.samples.sample_table import (
    EpochSample,
    MetricSample,
    epoch_columns,
    epoch_table,
    metric_table,
    observe_epoch,
    observe_metric,
)


def an_epoch(
    batch: int = 64, workers: int = 2, nodes: int | None = None, epoch_s: float = 10.0
) -> EpochSample:
    return EpochSample(batch=batch, workers=workers, nodes=nodes, epoch_s=epoch_s)


def a_metric(batch: int = 64, epochs: float = 2, metric: float = 0.5) -> MetricSample:
    return MetricSample(batch=batch, epochs=epochs, metric=metric)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_epoch_time_that_is_none_is_refused_with_row_and_value(value):
    with pytest.raises(InputError, match=rf"row 2: epoch_s is {value}"):
        epoch_table([an_epoch(), an_epoch(epoch_s=value)], gpus_per_node=4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1])
def test_metric_that_is_none_is_refused_with_row_and_value(value):
    with pytest.raises(InputError, match=rf"row 1: metric is {value}"):
        metric_table([a_metric(metric=value)], higher_is_better=True)


def test_impossible_configurations_are_refused():
    with pytest.raises(InputError, match=r"nodes is 3; .* between 1 and the 2 workers"):
        epoch_table([an_epoch(nodes=3)], gpus_per_node=4)
    with pytest.raises(InputError, match="workers is 0"):
        epoch_table([an_epoch(workers=0)], gpus_per_node=4)
    with pytest.raises(InputError, match="gpus_per_node is 0"):
        epoch_table([], gpus_per_node=0)
    with pytest.raises(InputError, match="row 1: epochs is nan"):
        metric_table([a_metric(epochs=math.nan)], higher_is_better=True)


def test_nodes_are_packed_where_not_stated():
    table = epoch_table([an_epoch(workers=9), an_epoch(workers=9, nodes=9)], gpus_per_node=4)
    assert epoch_columns(table)[:, 2].tolist() == [3, 9]


def test_observe_ignores_order_and_exact_repeats():
    samples = [an_epoch(nodes=n, epoch_s=s) for n, s in ((None, 3.0), (2, 1.0), (1, 2.0))]
    table = epoch_table([], gpus_per_node=4)
    for sample in samples:
        table = observe_epoch(table, sample)
    assert table == epoch_table(reversed(samples), gpus_per_node=4)
    assert observe_epoch(table, samples[1]) is table

    metrics = metric_table([], higher_is_better=True)
    for sample in (a_metric(epochs=3), a_metric(batch=8), a_metric(epochs=1)):
        metrics = observe_metric(metrics, sample)
    assert metrics == metric_table(
        [a_metric(epochs=1), a_metric(epochs=3), a_metric(batch=8)], higher_is_better=True
    )
    assert observe_metric(metrics, a_metric(batch=8)) is metrics


def test_observe_names_the_row_it_would_have_been():
    table = epoch_table([an_epoch()], gpus_per_node=4)
    with pytest.raises(InputError, match="row 2: epoch_s is nan"):
        observe_epoch(table, an_epoch(epoch_s=math.nan))
