"""Standard Workload Format 2.2 (Feitelson): 18 fields per line, ``;`` comments, -1 for unknown.

Processors stand for GPUs: the allocated ones, else the requested. A preceding job becomes ``after``;
its think time is not modelled, because the submission time of the log already contains it. Seconds
stay as given, ``UnixStartTime`` dates them. Partitions are separate machines: choose one with
``SwfFormat(partition=n)``, else all count as one machine. Rows of status 2 to 4 are parts of a job
whose whole has a row of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from coadapt.simulation.traces._base import NEVER_STARTED, Collector, Entry, LeftOut, Lines, Row, TraceFormat

_FIELDS = (
    *("job", "submit", "wait", "run", "processors", "cpu_time", "memory", "requested_processors"),
    *("requested_time", "requested_memory", "status", "user", "group", "executable", "queue"),
    *("partition", "preceding_job", "think_time"),
)
_INDEX = {field: place for place, field in enumerate(_FIELDS)}
_HEADER = re.compile(r";\s*(MaxProcs|MaxNodes|UnixStartTime)\s*:\s*(\d{1,15})\b")
_MOST = 1_000_000


class SwfFormat(TraceFormat):
    """A log of the Parallel Workloads Archive."""

    name, title = "swf", "Standard Workload Format"
    order = 110
    columns: ClassVar[dict[str, str]] = {
        "job": "job",
        "gpus": "processors",
        "duration_s": "run",
        "after": "preceding_job",
    }

    def __init__(self, partition: int | None = None) -> None:
        self._partition = partition

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        if any(re.match(r";\s*(Version|MaxProcs|MaxJobs|UnixStartTime)\s*:", line) for line in head):
            return True
        cells = next((line.split() for line in head if line.strip() and not line.startswith(";")), [])
        return len(cells) == len(_FIELDS) and all(re.fullmatch(r"-?\d+(\.\d+)?", cell) for cell in cells)

    def read(self, lines: Lines, into: Collector) -> None:
        into.loose_after = True  # a log is cut from a longer one
        found: dict[str, int] = {}
        into.take(_rows(lines, into, found), self._entry)
        into.started_at = float(found["UnixStartTime"]) if found.get("UnixStartTime") else None
        into.cluster_hint = _machine(found.get("MaxProcs", 0), found.get("MaxNodes", 0))

    def _entry(self, row: Row) -> Entry:
        partition = row.whole("partition", least=-1)
        if self._partition is not None and partition != self._partition:
            raise LeftOut("in another partition")
        if row.whole("status", least=-1) in (2, 3, 4):
            raise LeftOut("part of another row")
        run_s, wait_s = row.number("run", least=-1), row.number("wait", least=-1)
        if run_s < 0:
            raise LeftOut(NEVER_STARTED)
        gpus = row.whole("processors", least=-1)
        if gpus < 1:
            gpus = row.whole("requested_processors", least=-1)
        if gpus < 1:
            raise LeftOut("of unknown size")
        submit_s, limit_s = row.number("submit"), row.number("requested_time", least=-1)
        preceding = row.whole("preceding_job", least=-1)
        return Entry(
            line=row.line,
            job=str(row.whole("job")),
            submit_s=submit_s,
            gpus=gpus,
            duration_s=run_s,
            start_s=submit_s + wait_s if wait_s >= 0 else None,
            end_s=submit_s + wait_s + run_s if wait_s >= 0 else None,
            user=_known(row, "user"),
            team=_known(row, "group"),
            time_limit_s=limit_s if limit_s > 0 else None,
            after=(str(preceding),) if preceding > 0 else (),
        )


def _rows(lines: Lines, into: Collector, found: dict[str, int]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if line.startswith(";"):
            if header := _HEADER.match(line):
                found.setdefault(header[1], int(header[2]))
        elif cells := line.split():
            if len(cells) == len(_FIELDS):
                yield Row(number, cells, _INDEX)
            else:
                into.bad(number, f"has {len(cells)} fields, SWF has {len(_FIELDS)}")


def _known(row: Row, field: str) -> str:
    number = row.whole(field, least=-1)
    return "" if number < 0 else str(number)


def _machine(processors: int, nodes: int) -> str | None:
    if not 0 < processors <= _MOST:
        return None
    return f"{nodes}x{processors // nodes}" if nodes and processors % nodes == 0 else f"{processors}x1"
