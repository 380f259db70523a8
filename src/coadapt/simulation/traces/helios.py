"""Helios of SenseTime (Hu et al., SC '21): ``cluster_log.csv`` of one of its four clusters.

``job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue``.
Failed and cancelled jobs are kept: they held their GPUs. About half of the rows are CPU-only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

from coadapt.simulation.traces._base import (
    NEVER_STARTED,
    NO_GPUS,
    UNFINISHED,
    Collector,
    Entry,
    LeftOut,
    Lines,
    Row,
    TraceFormat,
    header_has,
    table,
)

_REQUIRED = ("job_id", "gpu_num", "submit_time", "start_time", "end_time", "duration")


class HeliosFormat(TraceFormat):
    """One cluster's log."""

    name, title = "helios", "Helios cluster_log CSV"
    order = 60
    columns: ClassVar[dict[str, str]] = {
        "job": "job_id",
        "gpus": "gpu_num",
        "start_s": "start_time",
        "end_s": "end_time",
        "duration_s": "duration",
    }
    rebased = calendar = True

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return header_has(head, (*_REQUIRED, "vc", "cpu_num", "node_num", "queue"), 6)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=_REQUIRED), _entry)


def _entry(row: Row) -> Entry:
    gpus = row.whole("gpu_num")
    if gpus == 0:
        raise LeftOut(NO_GPUS)
    start_s, end_s = row.moment_or_none("start_time"), row.moment_or_none("end_time")
    if start_s is None:
        raise LeftOut(NEVER_STARTED)
    if end_s is None:
        raise LeftOut(UNFINISHED)
    return Entry(
        line=row.line,
        job=row.text("job_id").strip(),
        submit_s=row.moment("submit_time"),
        gpus=gpus,
        duration_s=row.number("duration"),
        start_s=start_s,
        end_s=end_s,
        user=sys.intern(row.text("user").strip()),
        team=sys.intern(row.text("vc").strip()),
    )
