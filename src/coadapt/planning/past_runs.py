"""Past runs of ``coadapt plan --samples``: a CSV file whose columns may have any of several names."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from msgspec.structs import replace

from coadapt.errors import InputError, TraceError
from coadapt.planning.problem import Evidence, MemorySample
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table
from coadapt.spec.yaml_file import read_text

#: Names of columns in a file of past runs.
_COLUMNS = {
    "batch": ("batch", "batch_size", "bs", "global_batch_size", "total_batch_size"),
    "workers": ("workers", "replicas", "gpus", "num_gpus", "num_workers", "world_size"),
    "epochs": ("epochs", "passes", "epoch", "num_epochs"),
    "epoch_s": ("epoch_s", "epoch_time", "epoch_time_s", "pass_s", "pass_time"),
    "metric": ("metric", "accuracy", "val_acc", "acc", "loss", "val_loss", "score"),
    "gpu": ("gpu", "gpu_type", "type", "accelerator"),
    "nodes": ("nodes", "num_nodes"),
    "memory": ("memory_gb", "gpu_memory_gb"),
    "run": ("run", "run_id", "trial", "seed"),
}
#: Words for the same metric.
_SAME = (("accuracy", "val_acc", "acc"), ("loss", "val_loss"))
_GB = 1e9
#: Batch size, workers, nodes, GPU type and name of the run.
_Configuration = tuple[int, float | None, float | None, str, str]


def read_samples(
    path: str, *, metric: str | None, higher_is_better: bool, gpus_per_node: int, gpu_type: str
) -> Evidence:
    """Read past runs from a CSV file.

    Columns are batch, workers, epochs, epoch_s (seconds of one pass) and metric; also gpu, nodes, memory_gb (of one
    GPU) and run. Without a column "run", rows of one configuration whose passes rise from row to row are of one run.

    Args:
        path: The file.
        metric: Name of the metric's column; None: as the file names it.
        higher_is_better: Whether a higher metric is better.
        gpus_per_node: GPUs of a node.
        gpu_type: GPU type of rows without one.
    """
    reader = csv.DictReader(io.StringIO(read_text(path, "file of past runs")))
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    at = _columns(header, path, metric)
    epochs: dict[str, list[EpochSample]] = {}
    metrics: list[MetricSample] = []
    configurations: list[tuple[_Configuration, float]] = []
    memory: list[MemorySample] = []
    for line, record in enumerate(reader, 2):

        def number(name: str, line: int = line, record: dict[str, Any] = record) -> float | None:
            column = at.get(name)
            text = (record.get(column) or "").strip() if column else ""
            if not text:
                return None
            try:
                value = float(text)
            except ValueError:
                raise TraceError(f"{text!r} is not a number", file=path, line=line, column=column) from None
            if not math.isfinite(value):
                raise TraceError(f"{text!r} is not a finite number", file=path, line=line, column=column)
            return value

        batch, workers = _whole(number("batch"), "batch", path, line), number("workers")
        passes, epoch_s, value = number("epochs"), number("epoch_s"), number("metric")
        name = (record.get(at["gpu"]) or "").strip().lower() if "gpu" in at else ""
        if epoch_s is not None:
            nodes = number("nodes")
            sample = EpochSample(
                batch=batch,
                workers=_whole(1.0 if workers is None else workers, "workers", path, line),
                nodes=None if nodes is None else _whole(nodes, "nodes", path, line),
                epoch_s=epoch_s,
            )
            epochs.setdefault(name or gpu_type, []).append(sample)
        held = number("memory")
        if held is not None:
            memory.append(MemorySample(batch / (workers or 1.0), held * _GB))
        if value is not None and passes is not None:
            metrics.append(MetricSample(batch=batch, epochs=passes, metric=value))
            named = (record.get(at["run"]) or "").strip() if "run" in at else ""
            configurations.append(((batch, workers, number("nodes"), name, named), passes))
    if not epochs and not metrics:
        raise InputError(f"{path} has no run with a batch size and an epoch_s or a metric")
    runs = _runs(configurations)
    metrics = [replace(sample, run=run) for sample, run in zip(metrics, runs, strict=True)]
    return Evidence(
        epochs={
            name: epoch_table(found, gpus_per_node=gpus_per_node, gpu_type=name)
            for name, found in sorted(epochs.items())
        },
        metrics=metric_table(metrics, higher_is_better=higher_is_better) if metrics else None,
        memory=tuple(memory),
    )


def _runs(rows: list[tuple[_Configuration, float]]) -> list[int]:
    """Number of the run of each row: by its name, else rows of one configuration one after the other, while their passes rise."""
    numbers: dict[_Configuration, int] = {}
    found: list[int] = []
    begun = 0
    before: tuple[_Configuration, float] | None = None
    for configuration, passes in rows:
        goes_on = before is not None and configuration == before[0] and passes > before[1]
        if configuration not in numbers or not (configuration[-1] or goes_on):
            numbers[configuration] = begun
            begun += 1
        found.append(numbers[configuration])
        before = configuration, passes
    return found


def metric_column(path: str) -> str | None:
    """Name of the metric's column in the file, used where the user names no metric."""
    reader = csv.reader(io.StringIO(read_text(path, "file of past runs")))
    header = [name.strip() for name in next(reader, [])]
    return next((name for name in header if name.lower() in _COLUMNS["metric"]), None)


def _names_of(metric: str) -> tuple[str, ...]:
    """Columns that may hold a metric of this name: itself, another word for it, or one that is called nothing but a metric."""
    alike = next((names for names in _SAME if metric in names), ())
    return (metric, *alike, "metric", "score")


def _columns(header: list[str], path: str, metric: str | None) -> dict[str, str]:
    lower = {name.lower(): name for name in header}
    found = {}
    for key, names in _COLUMNS.items():
        wanted = _names_of(metric.lower()) if key == "metric" and metric else names
        column = next((lower[name] for name in wanted if name in lower), None)
        if column is None and key == "metric" and metric and any(name in lower for name in names):
            raise InputError(f"{path} has no column {metric!r}; found: {', '.join(header)}")
        if column is not None:
            found[key] = column
    if "batch" not in found:
        raise InputError(
            f"{path} has no column 'batch'; expected are batch, workers, epochs, epoch_s and metric, found: {', '.join(header) or 'nothing'}"
        )
    return found


def _whole(value: float | None, name: str, path: str, line: int) -> int:
    if value is None:
        raise TraceError("is empty", file=path, line=line, column=name)
    if value != int(value) or value < 1:
        raise TraceError(f"{value:g} must be a whole number, 1 or more", file=path, line=line, column=name)
    return int(value)
