"""The files of ``coadapt plan``: past runs (CSV), prices (YAML, JSON or CSV), the job's specification (YAML)."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coadapt.configure.problem import Evidence
from coadapt.errors import InputError, TraceError, UnknownNameError
from coadapt.predict.hardware import find_gpu
from coadapt.predict.samples import EpochSample, MetricSample, epoch_table, metric_table

#: Names of columns in a file of past runs.
_COLUMNS = {
    "batch": ("batch", "batch_size", "bs", "global_batch_size", "total_batch_size"),
    "workers": ("workers", "replicas", "gpus", "num_gpus", "num_workers", "world_size"),
    "epochs": ("epochs", "passes", "epoch", "num_epochs"),
    "epoch_s": ("epoch_s", "epoch_time", "epoch_time_s", "pass_s", "pass_time"),
    "metric": ("metric", "accuracy", "val_acc", "acc", "loss", "val_loss", "score"),
    "gpu": ("gpu", "gpu_type", "type", "accelerator"),
    "nodes": ("nodes", "num_nodes"),
}
#: Words for the same metric.
_SAME = (("accuracy", "val_acc", "acc"), ("loss", "val_loss"))
#: Keys of a job's specification; those that only submit needs are known, too.
SPEC_KEYS = (
    "name", "resources", "num_nodes", "workdir", "setup", "run", "envs", "epochs", "passes", "target", "batch", "priority",
    "deadline", "time_limit", "after", "preemptible", "retries", "user", "team", "data_size", "profile", "roles",
    "gpus_per_replica", "mixed", "metrics", "budget", "lr", "lr_rule",
)  # fmt: skip
_BATCH_KEYS = ("initial", "max", "per_gpu", "mode")
_RESOURCE_KEYS = ("accelerators", "cpus", "memory")


def _read(path: str, what: str) -> str:
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory; name the {what}")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} {path} is not a text file") from None


def read_samples(
    path: str, *, metric: str | None, higher_is_better: bool, gpus_per_node: int, gpu_type: str
) -> Evidence:
    """Past runs: columns batch, workers, epochs, epoch_s (seconds of one pass), metric; also gpu and nodes."""
    reader = csv.DictReader(io.StringIO(_read(path, "file of past runs")))
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    at = _columns(header, path, metric)
    epochs: dict[str, list[EpochSample]] = {}
    metrics: list[MetricSample] = []
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
        if value is not None and passes is not None:
            metrics.append(MetricSample(batch=batch, epochs=passes, metric=value))
    if not epochs and not metrics:
        raise InputError(f"{path} has no run with a batch size and an epoch_s or a metric")
    return Evidence(
        epochs={
            name: epoch_table(found, gpus_per_node=gpus_per_node) for name, found in sorted(epochs.items())
        },
        metrics=metric_table(metrics, higher_is_better=higher_is_better) if metrics else None,
    )


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


def read_prices(path: str, offered: Iterable[str]) -> dict[str, float]:
    """Per GPU type and hour: a mapping in YAML or JSON, or CSV with the columns gpu and price."""
    text = _read(path, "price file")
    given = _csv_prices(text, path) if path.lower().endswith(".csv") else _mapping(text, path, "price file")
    offered = {name.lower() for name in offered}
    prices = {}
    for name, value in given.items():
        key = str(name).lower()
        if key not in offered:
            try:
                find_gpu(key)
            except UnknownNameError as error:
                raise InputError(f"price file {path}: {error}") from None
        try:
            price = float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"price file {path}: price of {name} is {value!r}; must be a number per GPU and hour"
            ) from None
        if not (math.isfinite(price) and price >= 0):
            raise InputError(f"price file {path}: price of {name} is {value!r}; must be 0 or more")
        prices[key] = price
    if not prices:
        raise InputError(f"price file {path} has no price; write for example 'a100: 2.5', per GPU and hour")
    return prices


def _csv_prices(text: str, path: str) -> dict[str, Any]:
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"gpu", "price"} <= set(rows[0]):
        raise InputError(f"price file {path} needs the columns gpu and price")
    return {row["gpu"]: row["price"] for row in rows}


def read_spec(path: str) -> dict[str, Any]:
    """A job's specification, its keys checked."""
    spec = _mapping(_read(path, "specification"), path, "specification")
    _check_keys(spec, SPEC_KEYS, path, "")
    for key, known in (("batch", _BATCH_KEYS), ("resources", _RESOURCE_KEYS)):
        if isinstance(spec.get(key), Mapping):
            _check_keys(spec[key], known, path, f"{key}.")
    return spec


def _mapping(text: str, path: str, what: str) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where is not None else ""
        raise InputError(f"{path}{line}: not YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{what} {path} must be a mapping of names to values")
    return loaded


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...], path: str, prefix: str) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise InputError(f"{path}: unknown key {prefix}{key}; {hint}")
