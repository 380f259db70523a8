"""Measured tables as ground truth: step times and training curves in the files that Pollux (Apache-2.0) and Sia published.

The files are read as they are, from a directory of tasks, each a folder with

    placements.csv         placement, local_bsz, step_time, sync_time
    scalability.csv        num_nodes, num_replicas, local_bsz, step_time, sync_time
    validation-<M>.csv     progress, iteration, metric, grad_sqr, grad_var     one per total batch size

or, for several GPU types, ``placements-<type>.csv`` and ``scalability-<type>.csv``. The order of columns is free. M0
and the largest batch size are the smallest and the largest validation file.

Training curves (``Curves``): one table per total batch size, one row per epoch of work. Between two measured batch
sizes every column is linear in the batch size (gradient norm and variance separately, as in Pollux' simulator);
outside them the nearest one is used. An epoch's end is the smallest progress any of the tables shows for it.

Step times of a task on one GPU type (``StepTimes``) are interpolated as in the simulator of Pollux (Qiao et al., OSDI
2021), whose published figures depend on it:

1. A measured placement is used directly, linear in the per-GPU batch size. A placement is a cycle of workers per node:
   (4, 4, 3), (4, 3, 4) and (3, 4, 4) are one, named by its smallest rotation "344".
2. Any other placement is read by linear interpolation over (nodes, replicas, batch): a Delaunay triangulation, axes not
   rescaled, of the placements averaged by (nodes, replicas, batch) followed by the measurements at scale. Nodes count
   as at most 16. Points stay in the order of the original, because the triangulation of a grid is not unique and
   depends on it.
3. Deviation: where Pollux would stop (outside the measured range), we continue. Below the smallest batch its time is
   kept; above the largest one computation grows in proportion and synchronisation stays; outside the triangulation the
   measured (nodes, replicas) with the nearest logarithms is used.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError, TraceError, UnknownNameError
from coadapt.model import Batch
from coadapt.simulation.truth._base import ANY_GPU


class EpochRow(NamedTuple):
    """State at the end of an epoch of work."""

    progress: float
    iteration: float
    metric: float
    grad_sqr: float
    grad_var: float


_ITERATION, _METRIC, _SQR, _VAR = 1, 2, 3, 4


class Curves:
    """All curves of a task, by total batch size."""

    def __init__(self, by_batch: Mapping[int, Sequence[EpochRow]]) -> None:
        self.batches = sorted(by_batch)
        self._rows = [list(by_batch[batch]) for batch in self.batches]
        self.epochs = min(map(len, self._rows))
        self.marks = tuple(min(rows[at].progress for rows in self._rows) for at in range(self.epochs))
        self._kept: dict[tuple[int, int], tuple[float, float]] = {}

    @property
    def data_size(self) -> int:
        """Examples in the data: what the first epoch at M0 went through."""
        return round(self._rows[0][0].progress * self.batches[0])

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """(grad_sqr, grad_var) of that epoch."""
        key = (batch, epoch)
        found = self._kept.get(key)
        if found is None:
            found = (self._linear(batch, epoch, _SQR), self._linear(batch, epoch, _VAR))
            self._kept[key] = found
        return found

    def iteration(self, batch: int, epoch: int) -> float:
        """Optimizer steps at this batch size until the end of that epoch."""
        return self._linear(batch, epoch, _ITERATION)

    def metric(self, batch: int, epoch: int) -> float:
        """Validation metric at the end of that epoch."""
        return self._linear(batch, epoch, _METRIC)

    def _linear(self, batch: int, epoch: int, column: int) -> float:
        epoch = min(epoch, self.epochs - 1)
        right = bisect_left(self.batches, batch)
        if right == len(self.batches):
            return self._rows[-1][epoch][column]
        upper = self._rows[right][epoch][column]
        if right == 0 or self.batches[right] == batch:
            return upper
        below, above = self.batches[right - 1], self.batches[right]
        lower = self._rows[right - 1][epoch][column]
        return lower + (upper - lower) * (batch - below) / (above - below)


#: Pollux measured up to 16 nodes and takes wider placements for as slow as these.
MOST_NODES = 16
#: Simplices flatter than this hold no volume.
_FLAT = 1e-11


class Timing(NamedTuple):
    """One measured row: where (a placement's digits, or "" at scale), how large, how long."""

    placement: str
    nodes: int
    replicas: int
    atomic_batch: int
    step_s: float
    sync_s: float


class _Line:
    """Step and sync time along the batch size."""

    def __init__(self, points: Iterable[tuple[int, float, float]]) -> None:
        self.batches, self.steps, self.syncs = (list(column) for column in zip(*sorted(points), strict=True))

    def at(self, batch: int) -> tuple[float, float]:
        batches, steps, syncs = self.batches, self.steps, self.syncs
        right = bisect_right(batches, batch)
        if right == 0:
            return steps[0], syncs[0]
        if right == len(batches):
            growth = (batch - batches[-1]) / batches[-1]
            return steps[-1] + growth * max(steps[-1] - syncs[-1], 0.0), syncs[-1]
        left = right - 1
        part = (batch - batches[left]) / (batches[right] - batches[left])
        return (
            steps[left] + part * (steps[right] - steps[left]),
            syncs[left] + part * (syncs[right] - syncs[left]),
        )


class StepTimes:
    """Step times of one task on one GPU type; every answer is kept."""

    def __init__(self, placements: Iterable[Timing], at_scale: Iterable[Timing] = ()) -> None:
        self._placements = list(placements)
        self._at_scale = list(at_scale)
        by_name: dict[str, list[tuple[int, float, float]]] = {}
        for row in self._placements:
            by_name.setdefault(row.placement, []).append((row.atomic_batch, row.step_s, row.sync_s))
        self._measured = {name: _Line(points) for name, points in by_name.items()}
        self._kept: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        self._kept_between: dict[tuple[int, int, int], tuple[float, float]] = {}
        batches = [row.atomic_batch for row in self._placements]
        self.smallest_batch, self.largest_batch = min(batches), max(batches)
        self.max_workers = max(row.replicas for row in (*self._placements, *self._at_scale))

    def at(self, shape: tuple[int, ...], atomic_batch: int) -> tuple[float, float]:
        """(step_s, sync_s) of a step on ``shape`` workers per node."""
        key = (shape, atomic_batch)
        found = self._kept.get(key)
        if found is None:
            line = self._measured.get(smallest_rotation(shape))
            nodes = sum(1 for count in shape if count)
            found = line.at(atomic_batch) if line else self._between(nodes, sum(shape), atomic_batch)
            self._kept[key] = found
        return found

    def _between(self, nodes: int, replicas: int, batch: int) -> tuple[float, float]:
        key = (min(nodes, MOST_NODES), replicas, batch)
        found = self._kept_between.get(key)
        if found is None:
            step_s, sync_s = self._interpolator([key])[0]
            found = (float(step_s), float(sync_s)) if step_s == step_s else self._nearest(*key)
            self._kept_between[key] = found
        return found

    def _nearest(self, nodes: int, replicas: int, batch: int) -> tuple[float, float]:
        def distance(pair: tuple[int, int]) -> float:
            return math.log(pair[0] / nodes) ** 2 + math.log(pair[1] / replicas) ** 2

        return self._lines[min(self._lines, key=distance)].at(batch)

    @cached_property
    def _points(self) -> dict[tuple[int, int, int], tuple[float, float]]:
        """Times by (nodes, replicas, batch): averaged placements in sorted order, then those at scale."""
        groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for row in self._placements:
            key = (row.nodes, row.replicas, row.atomic_batch)
            groups.setdefault(key, []).append((row.step_s, row.sync_s))
        points = {}
        for key in sorted(groups):
            steps, syncs = zip(*groups[key], strict=True)
            points[key] = (sum(steps) / len(steps), sum(syncs) / len(syncs))
        for row in self._at_scale:
            points.setdefault((row.nodes, row.replicas, row.atomic_batch), (row.step_s, row.sync_s))
        return points

    @cached_property
    def _lines(self) -> dict[tuple[int, int], _Line]:
        """Times along the batch by (nodes, replicas)."""
        groups: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
        for (nodes, replicas, batch), (step_s, sync_s) in self._points.items():
            groups.setdefault((nodes, replicas), []).append((batch, step_s, sync_s))
        return {pair: _Line(points) for pair, points in groups.items()}

    @cached_property
    def _interpolator(self) -> Callable[[Sequence[tuple[int, int, int]]], npt.NDArray[np.float64]]:
        # Imported here: it takes longer than many a simulation, which needs no triangulation.
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import Delaunay

        mesh = Delaunay(np.array(list(self._points), float))
        # scipy would ask LAPACK for each simplex, and where threads compete for cores that takes a second.
        # A scipy that no longer looks here computes them itself: slower, not wrong.
        mesh._transform = _transforms(mesh.points[mesh.simplices])  # type: ignore[attr-defined]
        return LinearNDInterpolator(mesh, np.array(list(self._points.values())))


def _transforms(corners: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What scipy keeps as ``Delaunay.transform``: the inverse edge matrix and the last corner of each simplex.

    The inverse of three edges by cross products; a simplex without volume has NaN, as scipy wants it.
    """
    base = corners[:, 3]
    first, second, third = (corners[:, at] - base for at in range(3))
    rows = np.stack([np.cross(second, third), np.cross(third, first), np.cross(first, second)], axis=1)
    volumes = np.einsum("si,si->s", first, rows[:, 0])
    sizes = np.prod([np.linalg.norm(edge, axis=1) for edge in (first, second, third)], axis=0)
    volumes = np.where(np.abs(volumes) > _FLAT * sizes, volumes, np.nan)
    return np.concatenate([rows / volumes[:, None, None], base[:, None, :]], axis=1)


def smallest_rotation(shape: tuple[int, ...]) -> str:
    """The name of a placement: digits of its lexicographically smallest rotation; "" if none is defined."""
    digits = [count for count in shape if count]
    if len(digits) > 1:
        digits = min(digits[at:] + digits[:at] for at in range(len(digits)))
    return "".join(map(str, digits)) if digits and max(digits) < 10 else ""


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
    """A task by its measured tables.

    Args:
        curves: Training curves.
        steps: Step times by GPU type.
        epochs: Epochs of work after which a job ends.
        per_gpu_max: Largest batch size per GPU, by GPU type, where it is below the largest measured one.
    """

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
                f"the cluster has no GPU type, but several were measured: {', '.join(self.gpu_types)}"
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
        raise InputError(f"{directory} contains no task; expected TASK/placements.csv")
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
        raise InputError(
            f"{home} contains no validation-BATCH.csv; give the directory that does with --curves"
        )
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
