"""Slurm accounting: ``sacct -P`` (or ``-p``), columns in any order, further ones ignored.

One job is all rows with one JobIDRaw (attempts, as ``sacct -D`` lists them after a requeue) and all
components of a heterogeneous job (``123+0``, ``123+1``), which start together. Its submission is the
first attempt's, its duration the *sum* of its attempts: a preempted training job resumes from a
checkpoint, and the sum is what the cluster really gave. Its GPUs are the largest attempt's, summed
over components. Failed and cancelled jobs that ran are kept: they held their GPUs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from coadapt.simulation.traces._base import (
    NEVER_STARTED,
    NO_GPUS,
    UNFINISHED,
    BadValue,
    Collector,
    Entry,
    LeftOut,
    Lines,
    Row,
    TraceFormat,
    bars,
    header_has,
    table,
)

#: At least one of each line must be there.
_EITHER = (
    ("Submit",),
    ("Start",),
    ("JobIDRaw", "JobID"),
    ("ElapsedRaw", "Elapsed", "End"),
    ("AllocTRES", "ReqTRES"),
    ("End", "State"),
)
_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,9})(?=,|$)")
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2})(?:\.\d+)?")
_LIVE = frozenset(("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING", "RESIZING"))
EXPORT = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -D -P --noconvert -S 2026-01-01 -E now -o "
    "JobID,JobIDRaw,User,Account,Partition,Submit,Start,End,ElapsedRaw,State,ReqTRES,AllocTRES,TimelimitRaw"
)


class _Attempt(msgspec.Struct, gc=False):
    line: int
    submit_s: float
    gpus: int
    live: bool
    start_s: float | None
    end_s: float | None
    elapsed_s: float


class _Job(msgspec.Struct):
    line: int
    name: str
    user: str
    team: str
    time_limit_s: float | None
    gpu_types: tuple[str, ...]
    #: By component; "" for the usual job that has one.
    parts: dict[str, list[_Attempt]] = {}


class SlurmFormat(TraceFormat):
    """The output of sacct with '|' between the columns."""

    name, title = "slurm", "Slurm sacct -P"
    order = 100
    columns: ClassVar[dict[str, str]] = {
        "job": "JobID",
        "start_s": "Start",
        "end_s": "End",
        "gpus": "AllocTRES",
        "duration_s": "ElapsedRaw",
    }
    rebased = calendar = True

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        names = ("JobID", "JobIDRaw", "Submit", "Start", "End", "ElapsedRaw", "Elapsed", "State", "AllocTRES")
        return header_has(head, (*names, "ReqTRES", "User", "Account", "Partition"), 2, "|")

    def read(self, lines: Lines, into: Collector) -> None:
        jobs: dict[str, _Job] = {}
        rows = table(lines, into, required=(), split=bars, check=_check_header)
        into.take(rows, lambda row: _note(row, jobs))
        into.take(jobs.values(), _entry)


def _check_header(header: list[str]) -> None:
    missing = [" or ".join(names) for names in _EITHER if not any(name in header for name in names)]
    if missing:
        columns = "column" if len(missing) == 1 else "columns"
        raise BadValue(
            f"missing {columns} {', '.join(missing)}; export with the command of docs/traces.md: {EXPORT}"
        )


def _note(row: Row, jobs: dict[str, _Job]) -> None:
    shown = (row.text("JobID") or row.text("JobIDRaw")).strip()
    key = (row.text("JobIDRaw") or shown).strip()
    if "." in key or "." in shown:  # a step (123.batch, 123.0): part of its job's row
        return
    part = ""
    if "+" in shown:
        shown, _, part = shown.partition("+")
        key = shown
    attempt, time_limit_s = _attempt(row), _time_limit_s(row)
    job = jobs.get(key)
    if job is None:
        job = jobs[key] = _Job(
            line=row.line,
            name=shown,
            user=sys.intern(row.text("User").strip()),
            team=sys.intern(row.text("Account").strip()),
            time_limit_s=time_limit_s,
            gpu_types=_gpu_types(row.text("ReqTRES")),
        )
    job.parts.setdefault(part, []).append(attempt)


def _attempt(row: Row) -> _Attempt:
    gpus = _gpus(row.text("AllocTRES")) or _gpus(row.text("ReqTRES"))
    state = row.text("State").strip().partition(" ")[0].rstrip("+")  # "CANCELLED by 1000", "CANCELLED+"
    submit_s, start_s, end_s = row.moment("Submit"), row.moment_or_none("Start"), row.moment_or_none("End")
    elapsed_s = 0.0
    if row.has("ElapsedRaw"):
        elapsed_s = row.number("ElapsedRaw")
    elif row.has("Elapsed"):
        elapsed_s = _clock_s(row.text("Elapsed"), "Elapsed")
    elif start_s is not None and end_s is not None:
        elapsed_s = end_s - start_s
    if start_s is not None and end_s is None and state and state not in _LIVE:
        end_s = start_s + elapsed_s  # End was not exported
    if start_s is not None and end_s is not None and end_s < start_s:
        raise BadValue("the job ends before it starts", "End")
    return _Attempt(row.line, submit_s, gpus, state in _LIVE, start_s, end_s, elapsed_s)


def _entry(job: _Job) -> Entry:
    attempts = sorted((a for part in job.parts.values() for a in part), key=lambda a: (a.submit_s, a.line))
    gpus = sum(max(a.gpus for a in part) for part in job.parts.values())
    if not gpus:
        raise LeftOut(NO_GPUS)
    ran = [a for a in attempts if a.start_s is not None]
    if not ran:
        raise LeftOut(NEVER_STARTED)
    if attempts[-1].live or any(a.end_s is None for a in ran):
        raise LeftOut(UNFINISHED)
    return Entry(
        line=job.line,
        job=job.name,
        submit_s=attempts[0].submit_s,
        gpus=gpus,
        duration_s=max(
            sum(a.elapsed_s for a in part if a.start_s is not None) for part in job.parts.values()
        ),
        start_s=min(a.start_s for a in ran if a.start_s is not None),
        end_s=max(a.end_s for a in ran if a.end_s is not None),
        user=job.user,
        team=job.team,
        time_limit_s=job.time_limit_s,
        gpu_types=job.gpu_types,
    )


def _gpus(tres: str) -> int:
    """GPUs in ``cpu=8,gres/gpu:a100=4,gres/gpu=4``: the total, or the sum of the types without one."""
    typed = total = 0
    for kind, count in _GPU.findall(tres):
        if kind:
            typed += int(count)
        else:
            total += int(count)
    return total or typed


def _gpu_types(tres: str) -> tuple[str, ...]:
    """The type asked for. Several at once cannot be said of a job of one type: then any."""
    kinds = {kind.lower() for kind, _ in _GPU.findall(tres) if kind}
    return tuple(kinds) if len(kinds) == 1 else ()


def _time_limit_s(row: Row) -> float | None:
    raw, text = row.text("TimelimitRaw").strip(), row.text("Timelimit").strip()
    if raw and raw[0].isdigit():  # else UNLIMITED or Partition_Limit
        return row.number("TimelimitRaw") * 60
    return _clock_s(text, "Timelimit") if text and text[0].isdigit() else None


def _clock_s(text: str, column: str) -> float:
    """Seconds in Slurm's ``[days-][hours:]minutes:seconds``."""
    match = _CLOCK.fullmatch(text.strip())
    if not match:
        raise BadValue(f"{text[:40]!r} is not a time such as 1-02:03:04", column)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
