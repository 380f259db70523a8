"""Measurements that a user provides: epoch times by (batch, workers), metrics by (batch, epochs).

Rows that are no measurement (not a number, negative, no whole number of workers) are refused with the row and
the value; an exact repeat counts once, and the order of rows does not matter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.prediction._base import FloatArray


class EpochSample(Fact, frozen=True, kw_only=True):
    """Measured time of one pass over the data; ``batch`` is that of all workers together."""

    batch: int
    workers: int
    nodes: int | None = None
    epoch_s: float


class MetricSample(Fact, frozen=True, kw_only=True, order=True):
    """Metric after ``epochs`` passes of a run at ``batch``; ``run``: which run, -1 where that is not known."""

    batch: int
    epochs: float
    metric: float
    run: int = -1


class EpochTable(Fact, frozen=True):
    """Epoch times, and the GPUs of a node where samples do not name their nodes; ``gpu_type`` empty: not known."""

    gpus_per_node: int
    samples: tuple[EpochSample, ...] = ()
    gpu_type: str = ""


class MetricTable(Fact, frozen=True):
    """Metrics, and which way is better."""

    higher_is_better: bool
    samples: tuple[MetricSample, ...] = ()


def epoch_table(samples: Iterable[EpochSample], *, gpus_per_node: int, gpu_type: str = "") -> EpochTable:
    """All samples in a table; row numbers in errors count from 1."""
    if gpus_per_node < 1:
        raise InputError(f"gpus_per_node is {gpus_per_node}; must be at least 1")
    rows = list(samples)
    for number, sample in enumerate(rows, 1):
        _check_epoch(number, sample)
    return EpochTable(gpus_per_node=gpus_per_node, samples=_in_order(rows), gpu_type=gpu_type)


def metric_table(samples: Iterable[MetricSample], *, higher_is_better: bool) -> MetricTable:
    """All samples in a table; row numbers in errors count from 1."""
    rows = list(samples)
    for number, sample in enumerate(rows, 1):
        _check_metric(number, sample)
    return MetricTable(higher_is_better=higher_is_better, samples=tuple(sorted(set(rows))))


def observe_epoch(table: EpochTable, sample: EpochSample) -> EpochTable:
    """The table with one more sample; the same object if it is known already."""
    _check_epoch(len(table.samples) + 1, sample)
    if sample in table.samples:
        return table
    return replace(table, samples=_in_order([*table.samples, sample]))


def observe_metric(table: MetricTable, sample: MetricSample) -> MetricTable:
    """The table with one more sample; the same object if it is known already."""
    _check_metric(len(table.samples) + 1, sample)
    at = bisect_left(table.samples, sample)
    if at < len(table.samples) and table.samples[at] == sample:
        return table
    samples = (*table.samples[:at], sample, *table.samples[at:])
    return MetricTable(higher_is_better=table.higher_is_better, samples=samples)


def nodes_of(workers: int, nodes: int | None, gpus_per_node: int) -> int:
    """Number of nodes as stated, else the fewest that hold the workers."""
    return -(-workers // gpus_per_node) if nodes is None else nodes


def epoch_columns(table: EpochTable) -> FloatArray:
    """Rows of batch, workers, nodes, epoch_s."""
    rows = [
        (s.batch, s.workers, nodes_of(s.workers, s.nodes, table.gpus_per_node), s.epoch_s)
        for s in table.samples
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def metric_columns(table: MetricTable) -> FloatArray:
    """Rows of batch, epochs, metric, in order; what two runs have in common counts once."""
    rows = dict.fromkeys((s.batch, s.epochs, s.metric) for s in table.samples)
    return np.array(list(rows), dtype=np.float64).reshape(-1, 3)


def check_configuration(where: str, batch: int, workers: int, nodes: int | None) -> None:
    """Raise an InputError for values that cannot be a configuration.

    Args:
        where: Where the values come from, for the message.
        batch: Total batch size.
        workers: Number of workers.
        nodes: Number of nodes; None: packed.
    """
    _check(where, "batch", batch, "at least 1", batch >= 1)
    _check(where, "workers", workers, "at least 1", workers >= 1)
    if nodes is not None:
        _check(where, "nodes", nodes, f"between 1 and the {workers} workers", 1 <= nodes <= workers)


def check_run(where: str, batch: int, epochs: float) -> None:
    """Raise an InputError for values that cannot be a run; ``where`` they come from, for the message."""
    _check(where, "batch", batch, "at least 1", batch >= 1)
    _check(where, "epochs", epochs, "more than 0", epochs > 0)


def _check_epoch(row: int, sample: EpochSample) -> None:
    check_configuration(f"row {row}", sample.batch, sample.workers, sample.nodes)
    _check(f"row {row}", "epoch_s", sample.epoch_s, "more than 0 seconds", sample.epoch_s > 0)


def _check_metric(row: int, sample: MetricSample) -> None:
    check_run(f"row {row}", sample.batch, sample.epochs)
    _check(f"row {row}", "metric", sample.metric, "0 or more", sample.metric >= 0)


def _check(where: str, name: str, value: float, rule: str, holds: bool) -> None:
    if not (holds and math.isfinite(value)):
        raise InputError(f"{where}: {name} is {value}; must be a finite number, {rule}")


def _in_order(samples: list[EpochSample]) -> tuple[EpochSample, ...]:
    """Sorted; a sample without nodes comes before one with (None has no order)."""
    return tuple(sorted(set(samples), key=lambda s: (s.batch, s.workers, s.nodes or 0, s.epoch_s)))
