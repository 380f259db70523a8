"""Weights & Biases: rows of a run's history as JSON lines (``_step``, ``_runtime``, ``_timestamp``) or as a CSV export, also Lightning's ``metrics.csv``."""

from __future__ import annotations

import csv
import re
from typing import ClassVar

from coadapt.prediction.training_log.formats._mapping import first, mapping, numbers, whole
from coadapt.prediction.training_log.reading import Reading

_STEP_NAMES = ("_step", "step", "global_step", "trainer/global_step")
_NOT_A_NAME = re.compile(r"[^\w/@. -]")


class Wandb:
    """Reads exports of a run's history."""

    name: ClassVar[str] = "wandb"
    order: ClassVar[int] = 3
    #: A row of a table has no mark of its own: ``parse`` remembers the header.
    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._columns: list[str] | None = None
        self._first = True

    def parse(self, line: str) -> Reading | None:
        """Read a line; None if it is not of this format."""
        is_first, self._first = self._first, False
        if '"_step"' in line or '"_timestamp"' in line:
            said = mapping(line)
            return None if said is None else _row(said)
        if is_first and "," in line:
            self._header(line)
            return None
        if self._columns is None:
            return None
        cells = _cells(line)
        if cells is None or len(cells) != len(self._columns):
            return None
        return _row(dict(zip(self._columns, cells, strict=True)))

    def _header(self, line: str) -> None:
        cells = _cells(line)
        # an export of one chart names its metric columns "run name - metric"
        names = [] if cells is None else [cell.rpartition(" - ")[2].strip() for cell in cells]
        lower = {name.lower() for name in names}
        if lower & {*_STEP_NAMES, "epoch"} and all(name and not _NOT_A_NAME.search(name) for name in names):
            self._columns = [
                name.lower() if name.lower() in (*_STEP_NAMES, "epoch") else name for name in names
            ]


def _cells(line: str) -> list[str] | None:
    try:
        return next(csv.reader([line]), None)
    except csv.Error:
        return None


def _row(said: dict[str, object] | object) -> Reading | None:
    assert isinstance(said, dict)
    step, epoch = whole(said, *_STEP_NAMES), first(said, "epoch")
    if step is None and epoch is None:
        return None
    return Reading(
        form="run history",
        step=step,
        epoch=epoch if step is None else None,
        overall=True,
        run_s=first(said, "_runtime", "Relative Time (Process)", "relative time (process)"),
        stamp_s=first(said, "_timestamp", "wall time", "Wall time"),
        metrics={name: value for name, value in numbers(said).items() if not name.startswith("_")},
    )
