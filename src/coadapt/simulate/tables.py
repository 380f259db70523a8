"""Measured tables as ground truth: the files Pollux (Apache-2.0) and Sia published, read as they are.

A directory of tasks, each a folder with

    placements.csv         placement, local_bsz, step_time, sync_time
    scalability.csv        num_nodes, num_replicas, local_bsz, step_time, sync_time
    validation-<M>.csv     progress, iteration, metric, grad_sqr, grad_var     one per total batch size

or, for several GPU types, ``placements-<type>.csv`` and ``scalability-<type>.csv``. The order of columns
is free. M0 and the largest batch size are the smallest and the largest validation file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from coadapt.errors import InputError, TraceError, UnknownNameError
from coadapt.model import Batch
from coadapt.simulate.curves import Curves, EpochRow
from coadapt.simulate.step_times import StepTimes, Timing
from coadapt.simulate.truth import ANY_GPU

#: Epochs of work after which the published experiments end; other tasks: as many as were measured.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
#: GPU types by the name the files give to a kind of node.
TYPES = {"": "t4", "aws": "t4", "dgx-ext": "a100", "rtx": "rtx"}
#: Largest per-GPU batch size where it is less than the largest measured one, by task and file suffix.
PER_GPU_MAX = {("yolov3", ""): 8, ("deepspeech2", "rtx"): 57}
_TIMES = ("local_bsz", "step_time", "sync_time")
#: Smallest value of a column; 0 where it is not named.
_LEAST = {"num_nodes": 1.0, "num_replicas": 1.0, "local_bsz": 1.0, "step_time": 1e-9, "progress": 1e-9}


class TableTruth:
    """A task as it was measured."""

    def __init__(
        self, curves: Curves, steps: dict[str, StepTimes], *, epochs: int, per_gpu_max: dict[str, int]
    ) -> None:
        self._curves, self._steps = curves, steps
        self.epochs = epochs
        self.gpu_types = tuple(steps)
        self.max_workers = max(table.max_workers for table in steps.values())
        self.data_size = curves.data_size
        self._limits = {
            name: Batch(
                initial=curves.batches[0],
                max=curves.batches[-1],
                per_gpu_min=table.smallest_batch,
                per_gpu_max=min(table.largest_batch, per_gpu_max.get(name, table.largest_batch)),
            )
            for name, table in steps.items()
        }
        if len(steps) == 1:
            self._only: StepTimes | None = next(iter(steps.values()))
        else:
            self._only = None

    def limits(self, gpu_type: str) -> Batch:
        return self._limits[self._known(gpu_type)]

    def epoch_marks(self) -> tuple[float, ...]:
        return self._curves.marks[: self.epochs]

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        table = self._only or self._steps[self._known(gpu_type)]
        return table.at(shape, atomic_batch)

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        return self._curves.gradients(batch, epoch)

    def steps_until(self, batch: int, epoch: int) -> float:
        return self._curves.iteration(batch, epoch)

    def metric(self, batch: int, epoch: int) -> float | None:
        return self._curves.metric(batch, epoch)

    def _known(self, gpu_type: str) -> str:
        if gpu_type in self._steps:
            return gpu_type
        if self._only:
            return self.gpu_types[0]
        if gpu_type in ANY_GPU:
            raise InputError(
                f"the cluster does not name its GPU type, and several were measured: {', '.join(self.gpu_types)}"
            )
        raise UnknownNameError("GPU type", gpu_type, self.gpu_types)


def read_profiles(directory: Path, curves: Path | None = None) -> dict[str, TableTruth]:
    """Every task under ``directory``. A task without validation files takes those of its name in ``curves``."""
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory of measured tasks")
    folders = sorted(
        path for path in directory.iterdir() if path.is_dir() and any(path.glob("placements*.csv"))
    )
    if not folders:
        raise InputError(f"{directory} holds no task; expected TASK/placements.csv")
    return {folder.name: _read_task(folder, curves) for folder in folders}


def _read_task(folder: Path, curves: Path | None) -> TableTruth:
    by_batch: dict[int, list[EpochRow]] = {}
    home = folder if any(folder.glob("validation-*.csv")) else (curves or folder) / folder.name
    for path in sorted(home.glob("validation-*.csv")):
        batch = path.stem.removeprefix("validation-")
        if not batch.isdigit() or int(batch) == 0:
            raise TraceError(f"{batch!r} in the file's name is not a batch size", file=str(path))
        with path.open(newline="") as stream:
            by_batch[int(batch)] = read_curve(stream, str(path))
    if not by_batch:
        raise InputError(f"{home} holds no validation-BATCH.csv; name the folder that does as curves")
    curve = Curves(by_batch)
    epochs = EPOCHS.get(folder.name, curve.epochs)
    if curve.epochs < epochs:
        raise TraceError(
            f"{curve.epochs} epochs measured, {epochs} needed", file=str(home / "validation-*.csv")
        )
    steps, most = {}, {}
    for path in sorted(folder.glob("placements*.csv")):
        suffix = path.stem.removeprefix("placements").removeprefix("-")
        name = TYPES.get(suffix, suffix)
        steps[name] = StepTimes(
            _read_timings(path),
            _read_timings(path.with_name(path.name.replace("placements", "scalability", 1))),
        )
        most[name] = PER_GPU_MAX.get((folder.name, suffix), steps[name].largest_batch)
    return TableTruth(curve, steps, epochs=epochs, per_gpu_max=most)


def _read_timings(path: Path) -> list[Timing]:
    if path.name.startswith("scalability") and not path.exists():
        return []
    with path.open(newline="") as stream:
        return read_timings(stream, str(path))


def read_timings(stream: TextIO, file: str) -> list[Timing]:
    """The rows of placements.csv (has a column ``placement``) or scalability.csv."""
    rows = csv.reader(stream)
    header = next(rows, [])
    timings: list[Timing] = []
    if "placement" in header:
        where = header.index("placement")
        for row, (batch, step_s, sync_s) in _numbers(rows, header, _TIMES, file):
            digits = row[where].strip()
            if not digits.isdigit() or "0" in digits:
                raise _bad(f"{digits!r} is not a placement (digits 1-9)", rows, file, "placement")
            timings.append(Timing(digits, len(digits), sum(map(int, digits)), int(batch), step_s, sync_s))
    elif "num_nodes" in header:
        names = ("num_nodes", "num_replicas", *_TIMES)
        for _, (nodes, replicas, batch, step_s, sync_s) in _numbers(rows, header, names, file):
            timings.append(Timing("", int(nodes), int(replicas), int(batch), step_s, sync_s))
    else:
        raise TraceError("missing, and so is num_nodes", file=file, column="placement")
    if not timings:
        raise TraceError("no measurements", file=file)
    return timings


def read_curve(stream: TextIO, file: str) -> list[EpochRow]:
    """The rows of validation-<M>.csv."""
    rows = csv.reader(stream)
    header = next(rows, [])
    curve = [EpochRow(*values) for _, values in _numbers(rows, header, EpochRow._fields, file)]
    if not curve:
        raise TraceError("no epochs", file=file)
    return curve


def _numbers(
    rows: Iterable[list[str]], header: Sequence[str], names: Sequence[str], file: str
) -> Iterator[tuple[list[str], list[float]]]:
    """Each row with the numbers in its columns ``names``."""
    for name in names:
        if name not in header:
            raise TraceError(
                f"missing; the header has {', '.join(header) or 'nothing'}", file=file, column=name
            )
    columns = [header.index(name) for name in names]
    least = [_LEAST.get(name, 0.0) for name in names]
    for row in rows:
        if not row:
            continue
        try:
            values = [float(row[at]) for at in columns]
            good = all(low <= value < math.inf for low, value in zip(least, values, strict=True))
        except (ValueError, IndexError):
            good = False
        if not good:
            name, low = next(
                (n, low) for n, low, at in zip(names, least, columns, strict=True) if not _ok(row, at, low)
            )
            at = header.index(name)
            raise _bad(
                f"{row[at]!r} is not a number >= {low:g}" if at < len(row) else "missing", rows, file, name
            )
        yield row, values


def _ok(row: Sequence[str], at: int, low: float) -> bool:
    try:
        return low <= float(row[at]) < math.inf
    except (ValueError, IndexError):
        return False


def _bad(message: str, rows: object, file: str, column: str) -> TraceError:
    return TraceError(message, file=file, line=getattr(rows, "line_num", None), column=column)
