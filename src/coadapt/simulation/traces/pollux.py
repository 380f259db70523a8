"""Pollux workloads: ``name,time,application,num_replicas,batch_size``, seconds as given.

The applications are profiles; replicas and batch size are what the user asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from coadapt.simulation.traces._base import Collector, Entry, Lines, Row, TraceFormat, header_has, table

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


class PolluxFormat(TraceFormat):
    """Workload files of the Pollux and Sia artifacts."""

    name, title = "pollux", "Pollux workload CSV"
    order = 30
    columns: ClassVar[dict[str, str]] = {"job": "name", "profile": "application", "gpus": "num_replicas"}

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return header_has(head, _COLUMNS, 3)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=_COLUMNS), _entry)


def _entry(row: Row) -> Entry:
    return Entry(
        line=row.line,
        job=row.text("name").strip(),
        submit_s=row.number("time"),
        gpus=row.whole("num_replicas", least=1),
        profile=row.text("application").strip() or "(none)",
        batch=row.whole_or_none("batch_size", least=1),
    )
