"""Gavel workloads: ``job,model,gpus,total_steps,priority,slo,arrival_s``, seconds as given.

The models are profiles of a rate table (``--profiles`` with the directory of ``throughputs.csv``); the length of a job is
its number of steps. A positive ``slo`` is a deadline in multiples of ``duration_s``, where the file has such a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from coadapt.simulation.traces._base import Collector, Entry, Lines, Row, TraceFormat, header_has, table

_COLUMNS = ("job", "model", "gpus", "total_steps", "arrival_s")


class GavelFormat(TraceFormat):
    """Workload files of the Gavel and Shockwave artifacts."""

    name, title = "gavel", "Gavel workload CSV"
    # before our own columns, of which it has two
    order = 5
    columns: ClassVar[dict[str, str]] = {"profile": "model", "submit_s": "arrival_s", "epochs": "total_steps"}

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return header_has(head, ("model", "total_steps", "arrival_s"), 3)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=_COLUMNS), _entry)


def _entry(row: Row) -> Entry:
    return Entry(
        line=row.line,
        job=row.text("job").strip(),
        submit_s=row.number("arrival_s"),
        gpus=row.whole("gpus", least=1),
        profile=row.text("model").strip() or "(none)",
        epochs=row.number("total_steps"),
    )
