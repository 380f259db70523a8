"""Alibaba's GPU traces: PAI 2020 (two tables), "openb" pods 2023, spot jobs 2026.

2020 (Weng et al., NSDI '22): the job table's ``start_time`` is the submission; a job starts with its
first task and ends with its last one. GPUs are asked for in percent per instance: a job gets the sum
over its tasks of ``inst_num x plan_gpu / 100``, rounded up, that is, its own instances share GPUs and
no others do. ``gpu_type`` is what was assigned, not what was asked for, and does not bind the job.
The clock is shifted, so second 0 has no date.
2023: ``num_gpu`` GPUs; a share of one GPU (``gpu_milli`` < 1000) counts as a whole one.
2026: ``gpu_request`` per worker x ``worker_num``; HP jobs have priority 1 and are not preempted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from coadapt.errors import InputError
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
    guarded,
    header_has,
    table,
)

JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_STATES = frozenset(("Running", "Terminated", "Failed", "Waiting"))


class _Tasks(msgspec.Struct):
    """The tasks of one job, combined."""

    percent: float = 0.0
    start_s: float | None = None
    end_s: float | None = None


class PaiFormat(TraceFormat):
    """The job table read together with the task table, both with or without a header line."""

    name, title = "pai", "Alibaba PAI v2020 (job table and task table)"
    order = 70
    columns: ClassVar[dict[str, str]] = {"job": "job_name", "start_s": "start_time", "end_s": "end_time"}
    rebased = True

    def __init__(self, tasks: Lines | None = None, tasks_file: str = "") -> None:
        self._task_lines, self._task_file = tasks, tasks_file

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return _is_table(head, JOB_COLUMNS)

    def read(self, lines: Lines, into: Collector) -> None:
        if self._task_lines is None:
            raise InputError(
                f"{into.file} is the PAI job table alone; GPUs are in the task table: give the directory that contains both"
            )
        jobs: dict[str, _Tasks] = {}
        beside = into.beside(self._task_file)
        rows = table(
            guarded(self._task_lines, self._task_file), beside, required=TASK_COLUMNS, fixed=TASK_COLUMNS
        )
        beside.take(rows, lambda row: _note_task(row, jobs))
        rows = table(lines, into, required=JOB_COLUMNS, fixed=JOB_COLUMNS)
        into.take(rows, lambda row: _pai_entry(row, jobs.get(row.text("job_name"))))


def is_task_table(head: Sequence[str]) -> bool:
    """True if these lines begin a PAI task table, which is of use only beside its job table."""
    return _is_table(head, TASK_COLUMNS)


def _is_table(head: Sequence[str], columns: Sequence[str]) -> bool:
    cells = [cell.strip() for cell in head[0].split(",")] if head else []
    return cells == list(columns) or (len(cells) == len(columns) and cells[3] in _STATES)


def _note_task(row: Row, jobs: dict[str, _Tasks]) -> None:
    tasks = jobs.setdefault(row.text("job_name"), _Tasks())
    instances = row.number_or_none("inst_num")
    tasks.percent += (1.0 if instances is None else instances) * (row.number_or_none("plan_gpu") or 0.0)
    start_s, end_s = row.number_or_none("start_time"), row.number_or_none("end_time")
    if start_s is not None:
        tasks.start_s = start_s if tasks.start_s is None else min(tasks.start_s, start_s)
    if end_s is not None:
        tasks.end_s = end_s if tasks.end_s is None else max(tasks.end_s, end_s)


def _pai_entry(row: Row, tasks: _Tasks | None) -> Entry:
    if tasks is None:
        raise LeftOut("not in the task table")
    if not tasks.percent:
        raise LeftOut(NO_GPUS)
    if tasks.start_s is None:
        raise LeftOut(NEVER_STARTED)
    end_s = row.number_or_none("end_time") if tasks.end_s is None else tasks.end_s
    if end_s is None or row.text("status") in ("Running", "Waiting"):
        raise LeftOut(UNFINISHED)
    return Entry(
        line=row.line,
        job=row.text("job_name"),
        submit_s=row.number("start_time"),
        gpus=math.ceil(tasks.percent / 100 - 1e-9),
        duration_s=max(0.0, end_s - tasks.start_s),
        start_s=tasks.start_s,
        end_s=end_s,
        user=sys.intern(row.text("user")),
    )


class OpenbFormat(TraceFormat):
    """The pod list of cluster-trace-gpu-v2023."""

    name, title = "openb", "Alibaba v2023 openb pod list"
    order = 80
    columns: ClassVar[dict[str, str]] = {
        "job": "name",
        "gpus": "num_gpu",
        "start_s": "scheduled_time",
        "end_s": "deletion_time",
    }
    _REQUIRED = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return header_has(head, (*OpenbFormat._REQUIRED, "gpu_milli", "gpu_spec", "pod_phase"), 5)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=self._REQUIRED), _openb_entry)


def _openb_entry(row: Row) -> Entry:
    gpus = row.whole("num_gpu")
    if gpus == 0:
        raise LeftOut(NO_GPUS)
    start_s, end_s = row.number_or_none("scheduled_time"), row.number_or_none("deletion_time")
    if start_s is None:
        raise LeftOut(NEVER_STARTED)
    if end_s is None:
        raise LeftOut(UNFINISHED)
    return Entry(
        line=row.line,
        job=row.text("name").strip(),
        submit_s=row.number("creation_time"),
        gpus=gpus,
        duration_s=max(0.0, end_s - start_s),
        start_s=start_s,
        end_s=end_s,
        team=sys.intern(row.text("qos").strip()),
        gpu_types=tuple(part.lower() for part in row.text("gpu_spec").strip().split("|") if part),
    )


class SpotFormat(TraceFormat):
    """``job_info_df.csv`` of cluster-trace-v2026-spot-gpu."""

    name, title = "spot", "Alibaba v2026 spot job_info_df CSV"
    order = 90
    columns: ClassVar[dict[str, str]] = {"job": "job_name", "gpus": "gpu_request", "duration_s": "duration"}
    _REQUIRED = ("job_name", "gpu_request", "worker_num", "submit_time", "duration", "job_type")

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        return header_has(head, (*SpotFormat._REQUIRED, "organization", "gpu_model"), 5)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=self._REQUIRED), _spot_entry)


def _spot_entry(row: Row) -> Entry:
    gpus = math.ceil(row.number("gpu_request") * row.whole("worker_num", least=1) - 1e-9)
    if gpus == 0:
        raise LeftOut(NO_GPUS)
    spot, model = row.text("job_type").strip() == "Spot", row.text("gpu_model").strip().lower()
    return Entry(
        line=row.line,
        job=row.text("job_name").strip(),
        submit_s=row.number("submit_time"),
        gpus=gpus,
        duration_s=row.number("duration"),
        team=sys.intern(row.text("organization").strip()),
        priority=0 if spot else 1,
        preemptible=spot,
        gpu_types=(model,) if model else (),
    )
