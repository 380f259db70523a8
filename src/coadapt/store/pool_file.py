"""The pool of past jobs in a file: written as a whole or not at all, checked when read, readable by every later version.

A pool is a file that people copy, edit and cut. An impossible value would distort every prediction made from it, or
break a fit long after it was read, so every value is checked.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.prediction.remaining.past_jobs import PastJob, Pool, signature
from coadapt.prediction.step_time.formula import NAMES
from coadapt.prediction.step_time.step_table import StepTimeRow

#: Version written by this coadapt; fields are only added, with defaults.
POOL_VERSION = 1
#: Signatures named in one line, at most.
_NAMED = 5


class _Header(Fact, frozen=True):
    version: int


class _PoolFile(Fact, frozen=True):
    version: int
    pool: Pool


def read_pool(path: Path | str) -> Pool:
    """Reads and checks the pool in a file."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read pool {path}: {error.strerror}") from None
    try:
        version = msgspec.json.decode(data, type=_Header).version
        pool = msgspec.json.decode(data, type=_PoolFile).pool if 1 <= version <= POOL_VERSION else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"pool {path} is damaged or not a pool ({error}); restore it, or name a new file"
        ) from None
    if version < 1:
        raise InputError(f"pool {path} has the unknown version {version}; restore it, or name a new file")
    if pool is None:
        raise InputError(
            f"pool {path} has version {version}, this coadapt reads up to {POOL_VERSION}; use the newer coadapt that wrote it"
        )
    if problem := impossible(pool):
        raise InputError(f"pool {path}: {problem}")
    return pool


def write_pool(path: Path | str, pool: Pool) -> None:
    """Writes the pool atomically: a reader, also after a power cut, finds the old one or the new one.

    A new file gets the rights every new file gets (umask), one that is replaced keeps its own.
    """
    path = Path(path)
    # omit_defaults would leave out a version of 1 if it had a default; it has none
    data = msgspec.json.encode(_PoolFile(version=POOL_VERSION, pool=pool))
    # named before it is made: an interrupt at any moment leaves nothing behind
    part = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        try:
            with part.open("xb") as stream:
                with suppress(FileNotFoundError):
                    part.chmod(path.stat().st_mode & 0o777)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write pool {path}: {error.strerror}") from None


#: Bounds of every number; generous, so that no measurement lies outside.
_Bounds = dict[str, tuple[float, float]]
_YEAR_S = 366 * 86400.0
_POOL: _Bounds = {"limit": (1, 1e6)}
_JOB: _Bounds = {
    "parameters": (0, 1e18),
    "data_size": (0, 1e18),
    "batch": (0, 1e12),
    "finished_at": (-1e12, 1e12),
    "total_work": (0, 1e24),
    "declared_work": (0, 1e24),
    "change_cost_s": (0, _YEAR_S),
    "changes": (0, 1e9),
}
_NOISE: _Bounds = {"share": (0, 1), "phi": (0, 1e30)}
_ROW: _Bounds = {
    "nodes": (1, 1e6),
    "replicas": (1, 1e6),
    "atomic_batch": (1, 1e12),
    "count": (1, 1e15),
    "step_s": (1e-12, _YEAR_S),
    "sync_s": (0, _YEAR_S),
    "step_var": (0, _YEAR_S**2),
    "sync_var": (0, _YEAR_S**2),
    "fit_step_s": (1e-12, _YEAR_S),
    "fit_sync_s": (0, _YEAR_S),
}


def impossible(pool: Pool) -> str | None:
    """Returns the first impossible value, with its job and field; None if all are possible."""
    for problem in _outside(pool, _POOL, "its "):
        return problem
    for job in pool.jobs:
        name = job.name if len(job.name) <= 60 else f"{job.name[:57]}..."
        for problem in _of_job(job):
            return f"job {name!r}: {problem}"
    return None


def _of_job(job: PastJob) -> Iterator[str]:
    yield from _outside(job, _JOB, "")
    for number, point in enumerate(job.noise, start=1):
        for field, value in zip(_NOISE, point, strict=True):
            yield from _beyond(f"noise {number}: {field}", value, *_NOISE[field])
    for number, row in enumerate(job.table.rows, start=1):
        yield from _outside(row, _ROW, f"row {number} of its table: ")


def _outside(thing: Pool | PastJob | StepTimeRow, bounds: _Bounds, where: str) -> Iterator[str]:
    for field, (least, most) in bounds.items():
        value = getattr(thing, field)
        if value is not None:
            yield from _beyond(f"{where}{field}", value, least, most)


def _beyond(what: str, value: float, least: float, most: float) -> Iterator[str]:
    # written so that a NaN is refused; whole numbers may be too long for a float
    if not least <= value <= most:
        shown = str(value)
        yield f"{what} {shown if len(shown) <= 30 else shown[:27] + '...'} is not possible; it is from {least:g} to {most:g}"


def pool_rows(pool: Pool) -> list[dict[str, Any]]:
    """The content of a pool as plain data: one row for each signature, the largest first (``coadapt pool --json``)."""
    groups: dict[str, list[PastJob]] = {}
    for job in pool.jobs:
        groups.setdefault(signature(job.name), []).append(job)
    rows = [
        {
            "signature": name,
            "jobs": len(jobs),
            "points": sum(len(job.table.rows) for job in jobs),
            "work": _median(job.total_work for job in jobs),
            "change_cost_s": _median(job.change_cost_s for job in jobs),
        }
        for name, jobs in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["jobs"], row["signature"]))


def too_few_measured(pool: Pool) -> str | None:
    """Which signatures have measured fewer configurations than the step-time model has parameters."""
    seen: dict[str, set[tuple[str, int, int, int]]] = {}
    for job in pool.jobs:
        measured = seen.setdefault(signature(job.name), set())
        measured.update((row.gpu_type, row.nodes, row.replicas, row.atomic_batch) for row in job.table.rows)
    few = [
        f"{name or '-'} ({len(rows)})" for name, rows in sorted(seen.items()) if 0 < len(rows) < len(NAMES)
    ]
    if not few:
        return None
    more = f" and {len(few) - _NAMED} more" if len(few) > _NAMED else ""
    return (
        f"fewer configurations measured than the step-time model has parameters ({len(NAMES)}): "
        f"{', '.join(few[:_NAMED])}{more}; what is predicted from these has wide intervals"
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
