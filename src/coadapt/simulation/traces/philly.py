"""Microsoft Philly (Jeon et al., ATC '19): the reduced CSV, and the original ``cluster_job_log``.

CSV: ``timestamp,duration,num_gpus,gpu_time,cluster``; one row per job, no ids (row n becomes
``philly-n``) and no starts. JSON: jobs with attempts; a job's duration is the sum of its attempts, its
size that of its largest attempt, its start the first attempt's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from coadapt.errors import TraceError
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
    parse_moment,
    table,
)


class PhillyFormat(TraceFormat):
    """The CSV of 82,247 jobs used by the Pollux artifact."""

    name, title = "philly", "Philly CSV"
    order = 40
    columns: ClassVar[dict[str, str]] = {"gpus": "num_gpus", "duration_s": "duration"}
    rebased = calendar = True

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return header_has(head, ("timestamp", "duration", "num_gpus", "gpu_time", "cluster"), 3)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=("timestamp", "duration", "num_gpus")), _csv_entry)


def _csv_entry(row: Row) -> Entry:
    return Entry(
        line=row.line,
        job=f"philly-{row.line - 1}",
        submit_s=row.moment("timestamp"),
        gpus=row.whole("num_gpus", least=1),
        duration_s=row.number("duration"),
        team=sys.intern(row.text("cluster").strip()),
    )


class _Detail(msgspec.Struct):
    gpus: list[str] = []


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] = []


class _Job(msgspec.Struct):
    jobid: str
    submitted_time: str | None = None
    attempts: list[_Attempt] = []
    vc: str = ""
    user: str = ""
    #: Not in the file: the place in the list, which is what an error can name.
    line: int = 0


class PhillyJsonFormat(TraceFormat):
    """The original log, one JSON list."""

    name, title = "philly-json", "Philly cluster_job_log (JSON)"
    order = 50
    columns: ClassVar[dict[str, str]] = {"job": "jobid", "start_s": "start_time", "end_s": "end_time"}
    rebased = calendar = True

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return "".join(head).lstrip().startswith("[")

    def read(self, lines: Lines, into: Collector) -> None:
        text = "".join(lines)
        try:
            jobs = msgspec.json.decode(text, type=list[_Job])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise TraceError(f"is not a Philly job log: {error}", file=into.file) from None
        for place, job in enumerate(jobs, 1):
            job.line = place
        into.take(jobs, _json_entry)


def _json_entry(job: _Job) -> Entry:
    spans = []
    for attempt in job.attempts:
        start_s, end_s = _moment(attempt.start_time, "start_time"), _moment(attempt.end_time, "end_time")
        if start_s is not None and end_s is None:
            raise LeftOut(UNFINISHED)
        if start_s is not None and end_s is not None:
            spans.append((start_s, end_s))
    if not spans:
        raise LeftOut(NEVER_STARTED)
    gpus = max(sum(len(detail.gpus) for detail in attempt.detail) for attempt in job.attempts)
    if not gpus:
        raise LeftOut(NO_GPUS)
    return Entry(
        line=job.line,
        job=job.jobid,
        submit_s=parse_moment(job.submitted_time or "", "submitted_time"),
        gpus=gpus,
        duration_s=sum(end_s - start_s for start_s, end_s in spans),
        start_s=min(start_s for start_s, _ in spans),
        end_s=max(end_s for _, end_s in spans),
        user=sys.intern(job.user),
        team=sys.intern(job.vc),
    )


def _moment(text: str | None, column: str) -> float | None:
    return None if text is None or text in ("", "None") else parse_moment(text, column)
