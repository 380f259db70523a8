"""Builders for step-time tables, by hand and from the measured tasks of Pollux."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from coadapt.model import Configuration, Measurement
from coadapt.prediction.step_time import step_table
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.prediction.step_time.step_table import StepTimeTable

TASKS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")

#: nodes, replicas, atomic batch, step_s, sync_s
Row = tuple[int, int, int, float, float]


def a_measurement(
    nodes: int = 1,
    replicas: int = 1,
    atomic: int = 32,
    step_s: float = 1.0,
    sync_s: float = 0.0,
    **more: object,
) -> Measurement:
    gpu_type = str(more.pop("gpu_type", "gpu"))
    config = Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic, gpu_type=gpu_type)
    return Measurement(config=config, step_s=step_s, sync_s=sync_s, **more)  # type: ignore[arg-type]


def a_table(rows: Iterable[Row]) -> StepTimeTable:
    table = step_table.EMPTY_TABLE
    for row in rows:
        table = step_table.observe(table, a_measurement(*row))
    return table


def exact_rows(
    params: StepTimeParams, shapes: Iterable[tuple[int, int, int]], factor: float = 1.0
) -> list[Row]:
    """What a noise-free job with these parameters would report, ``factor`` times as slow."""
    rows = []
    for nodes, replicas, atomic in shapes:
        step_s = factor * float(params.step_time(nodes, replicas, atomic))
        grad_s = factor * (params.alpha_c + params.beta_c * atomic)
        rows.append((nodes, replicas, atomic, step_s, step_s - grad_s))
    return rows


def measured_rows(task_dir: Path) -> list[Row]:
    """All rows of one task, up to 16 nodes of 4 GPUs."""
    rows: list[Row] = []
    with (task_dir / "placements.csv").open() as stream:
        for r in csv.DictReader(stream):
            shape = [int(digit) for digit in r["placement"]]
            times = float(r["step_time"]), float(r["sync_time"])
            rows.append((len(shape), sum(shape), int(r["local_bsz"]), *times))
    with (task_dir / "scalability.csv").open() as stream:
        for r in csv.DictReader(stream):
            shape_ = int(r["num_nodes"]), int(r["num_replicas"]), int(r["local_bsz"])
            rows.append((*shape_, float(r["step_time"]), float(r["sync_time"])))
    return rows
