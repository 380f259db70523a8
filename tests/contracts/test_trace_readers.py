"""Every registered reader of traces, by the published suite, on the hand-written samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from coadapt.plugins import FORMATS
from coadapt.simulation.traces import CsvFormat, PaiFormat, TraceFormat
from coadapt.testing.trace_readers import TraceReaderConformance

SAMPLES = Path(__file__).parents[1] / "unit" / "simulation" / "traces" / "samples"
FILES = {"csv": "ours.csv", "jsonl": "ours.jsonl", "philly-json": "philly.json", "slurm": "slurm.txt"}
FILES |= {"swf": "log.swf", "pai": "pai/pai_job_table.csv"}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def suite(name: str) -> type[TraceReaderConformance]:
    def make(self: TraceReaderConformance) -> TraceFormat:
        if name == "pai":
            tasks = SAMPLES / "pai" / "pai_task_table.csv"
            return PaiFormat(lines_of(tasks), str(tasks))
        made: TraceFormat = FORMATS.make(name)
        return made

    def sample(self: TraceReaderConformance) -> Sequence[str]:
        return lines_of(SAMPLES / FILES.get(name, f"{name}.csv"))

    return type(f"Test_{name}".replace("-", "_"), (TraceReaderConformance,), {"make": make, "sample": sample})


for _name in FORMATS:
    globals()[f"Test_{_name}".replace("-", "_")] = suite(_name)


class Crashing(CsvFormat):
    """Takes every row for a good one."""

    def read(self, lines, into):  # type: ignore[no-untyped-def]
        kept = list(lines)
        [float(line.split(",")[1]) for line in kept[1:]]
        super().read(kept, into)


def test_suite_finds_fault_with_a_reader_that_crashes() -> None:
    class Suite(TraceReaderConformance):
        def make(self) -> TraceFormat:
            return Crashing()

        def sample(self) -> Sequence[str]:
            return ["job,submit_s,gpus,duration_s\n", "a,0,1,10\n", "b,5,2,20\n"]

    with pytest.raises((ValueError, IndexError)):
        Suite().test_broken_lines_are_the_users_mistake_never_a_crash()


def test_formats_are_tried_in_the_order_that_they_declare() -> None:
    orders = [FORMATS.load(name).order for name in FORMATS.names()]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)
