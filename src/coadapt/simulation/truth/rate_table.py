"""Ground truth from a table of step rates: steps per second by model, GPU type and number of GPUs, alone and in pairs.

The tables of Gavel (Narayanan et al., OSDI 2020) have these columns; ``other_model`` is empty for a job alone, and
``consolidated`` says whether its GPUs were on one machine (other rows are not used, as in the released simulator):

    gpu, consolidated, model, gpus, other_model, steps_per_s, other_steps_per_s

A job with such a profile has a fixed size and batch size. Its work is given in steps: an epoch is one step, and its data
are the examples of one step. A rate of 0 says that the job, or the pair, does not fit the memory of the GPU.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from coadapt.errors import InputError, TraceError
from coadapt.model import Batch, JobSpec, Role
from coadapt.simulation.truth._base import ANY_GPU

_NAMES = ("throughputs.csv", "throughputs.csv.gz")
_COLUMNS = ("gpu", "consolidated", "model", "gpus", "other_model", "steps_per_s", "other_steps_per_s")
#: More steps than any job has.
_MOST_STEPS = 10**12
_BATCH = re.compile(r"batch size (\d+)")
#: GPU type, model, GPUs.
_Key = tuple[str, str, int]


class RateTable:
    """Rates alone and in pairs; the rate of a pair is that of the first model beside the other."""

    def __init__(self, alone: Mapping[_Key, float], pairs: Mapping[tuple[str, str, int, str], float]) -> None:
        self.alone, self.pairs = alone, pairs

    @property
    def models(self) -> list[str]:
        """Every model in the table, in its order."""
        return list(dict.fromkeys(model for _, model, _ in self.alone))

    def rate(self, gpu_type: str, model: str, gpus: int, partner: str = "") -> float | None:
        """Steps per second, beside ``partner`` if it is not empty; None if that was not measured."""
        if partner:
            return self.pairs.get((gpu_type, model, gpus, partner))
        return self.alone.get((gpu_type, model, gpus))


class RateTruth:
    """Implements ``Truth`` for one model of a rate table."""

    def __init__(self, table: RateTable, model: str) -> None:
        self.table, self.model = table, model
        found = _BATCH.search(model)
        self._batch = int(found[1]) if found else 1
        self._gpus = sorted({gpus for _, name, gpus in table.alone if name == model})
        self._types = tuple(dict.fromkeys(gpu for gpu, name, _ in table.alone if name == model))

    @property
    def epochs(self) -> int:
        """Most steps of a job."""
        return _MOST_STEPS

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types it was measured on."""
        return self._types

    @property
    def max_workers(self) -> int:
        """Most GPUs it was measured on."""
        return self._gpus[-1]

    @property
    def data_size(self) -> int:
        """Examples of one step on one GPU."""
        return self._batch

    def limits(self, gpu_type: str) -> Batch:
        """The batch size, which is fixed."""
        if gpu_type not in self._types and gpu_type not in ANY_GPU:
            raise InputError(
                f"{self.model!r} has no rates for GPU type {gpu_type!r}; it has: {', '.join(self._types)}"
            )
        size = self._batch
        return Batch(
            initial=size, max=size * self.max_workers, per_gpu_min=size, per_gpu_max=size, mode="fixed"
        )

    def rate(self, gpu_type: str, gpus: int, partner: str = "") -> float:
        """Steps per second, 0 where it cannot run; a pair that was not measured counts as one that cannot."""
        known = self.table.rate(self._known(gpu_type), self.model, gpus, partner)
        if known is None and not partner:
            measured = ", ".join(map(str, self._gpus))
            raise InputError(
                f"{self.model!r} has no rate for {gpus} GPUs of type {gpu_type!r}; it has {measured} GPUs"
            )
        return known or 0.0

    def able_types(self, spec: JobSpec) -> tuple[str, ...]:
        """GPU types on which a job can run, of those that it may use."""
        allowed = [kind for kind in self._types if not spec.gpu_types or kind in spec.gpu_types]
        return tuple(
            kind for kind in allowed if (self.table.rate(kind, self.model, spec.requested) or 0.0) > 0
        )

    def _known(self, gpu_type: str) -> str:
        return self._types[0] if gpu_type in ANY_GPU else gpu_type

    def epoch_marks(self) -> tuple[float, ...]:
        """Not given: each job says how many steps it has."""
        raise InputError(
            f"{self.model!r} is known by its rates; how long a job is stands in its specification"
        )

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        """Seconds of a step; how much of it is synchronisation is not known."""
        rate = self.rate(gpu_type, sum(shape))
        return (1.0 / rate if rate else math.inf), 0.0

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """Without noise: a step is a step at the one batch size that there is."""
        return 1.0, 0.0

    def steps_until(self, batch: int, epoch: int) -> float:
        """An epoch is a step."""
        return epoch + 1.0

    def metric(self, batch: int, epoch: int) -> float | None:
        """None: no metric was measured."""
        return None

    def spec(self, name: str, gpus: int, steps: float = 1.0) -> JobSpec:
        """The specification of a job of so many steps."""
        if gpus not in self._gpus:
            raise InputError(
                f"{self.model!r} has no rates for {gpus} GPUs; it has {', '.join(map(str, self._gpus))}"
            )
        total = self._batch * gpus
        batch = Batch(
            initial=total, max=total, per_gpu_min=self._batch, per_gpu_max=self._batch, mode="fixed"
        )
        return JobSpec(
            name=name,
            roles=_roles(gpus),
            requested=gpus,
            requested_batch=total,
            batch=batch,
            epochs=steps,
            data_size=total,
            profile=self.model,
        )


@cache
def _roles(gpus: int) -> tuple[Role, ...]:
    return (Role(min=gpus, max=gpus),)


def rate_file(directory: Path) -> Path | None:
    """The rate table in a directory; None if there is none."""
    return next((directory / name for name in _NAMES if (directory / name).is_file()), None)


def read_rates(path: Path) -> dict[str, RateTruth]:
    """Reads a rate table; one truth per model."""
    alone: dict[_Key, float] = {}
    pairs: dict[tuple[str, str, int, str], float] = {}
    try:
        opened = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
        with opened as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise TraceError(f"the column {missing[0]!r} is missing", file=str(path))
            for number, row in enumerate(rows, start=2):
                _take(row, alone, pairs, path, number)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot be read: {error}", file=str(path)) from error
    if not alone:
        raise TraceError("no rates of jobs alone", file=str(path))
    table = RateTable(alone, pairs)
    return {model: RateTruth(table, model) for model in table.models}


def _take(
    row: Mapping[str, str],
    alone: dict[_Key, float],
    pairs: dict[tuple[str, str, int, str], float],
    path: Path,
    line: int,
) -> None:
    if row["consolidated"] != "1":
        return
    key = (row["gpu"], row["model"], int(_number(row, "gpus", path, line)))
    rate = _number(row, "steps_per_s", path, line)
    if not row["other_model"]:
        alone[key] = rate
        return
    other = row["other_model"]
    pairs[(*key, other)] = rate
    pairs.setdefault((key[0], other, key[2], key[1]), _number(row, "other_steps_per_s", path, line))


def _number(row: Mapping[str, str], column: str, path: Path, line: int) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < 1e9:
        raise TraceError(
            f"{row[column]!r} is not a number from 0 to 1e9", file=str(path), line=line, column=column
        )
    return value
