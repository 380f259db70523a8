"""The fields of a job that its reports change, as plain data: what ``ReportsMerged`` holds.

``changes`` compares the fields before and after a number of reports, ``apply`` sets them again. Both keep every bit: floats
go through JSON by their shortest exact form, mappings keep their order. Tables that only grow at their end and lose at
their beginning are written as what they lost and gained.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from coadapt.model import Configuration
from coadapt.prediction.gradient_noise import NoiseTable
from coadapt.prediction.parameter_server import ServerTable
from coadapt.prediction.remaining.adaptive_run import Stretch
from coadapt.prediction.step_time.step_table import StepTimeTable
from coadapt.scheduler.state.job_state import JobState

#: Fields and their types. ``change_cost_s`` is of the job's life, but a report of its set-up changes it.
FIELDS: dict[str, Any] = {
    "table": StepTimeTable,
    "server_table": ServerTable,
    "grad_sqr": float | None,
    "grad_var": float | None,
    "grad_batch": int | None,
    "noise": NoiseTable,
    "course": tuple[tuple[float, float], ...],
    "work": float | None,
    "epoch": float | None,
    "share": float | None,
    "share_of": float,
    "config": Configuration | None,
    "measured_at": float | None,
    "ran_reported_s": float,
    "reported_attempt": int,
    "progressed": bool,
    "metrics": dict[str, float],
    "goodput": float | None,
    "stretches": tuple[Stretch, ...],
    "change_cost_s": float | None,
}
#: Written by what is lost at the beginning and gained at the end, and the type of the entries.
_SLIDING: dict[str, Any] = {
    "course": tuple[tuple[float, float], ...],
    "stretches": tuple[Stretch, ...],
    "noise": tuple[tuple[float, float, float], ...],
}

Values = tuple[Any, ...]
#: The fields of a job; the values are frozen or replaced as a whole, so they stay what they were.
values_of = attrgetter(*FIELDS)


def changes(before: Values, job: JobState) -> dict[str, Any]:
    """Returns what differs between ``before`` and the job now, as plain data."""
    found: dict[str, Any] = {}
    for name, old, new in zip(FIELDS, before, values_of(job), strict=True):
        if new is old:
            continue
        if name in _SLIDING:
            lost, gained = _slid(_entries(name, old), _entries(name, new))
            if lost or gained:
                found[name] = [lost, msgspec.to_builtins(gained)]
        elif isinstance(new, float) or new != old or name == "metrics":
            # a float that is equal may still be another: 0.0 and -0.0
            found[name] = msgspec.to_builtins(new)
    return found


def apply(job: JobState, found: dict[str, Any]) -> None:
    """Sets the fields in ``found``, which ``changes`` returned for a job in the same state."""
    for name, value in found.items():
        if name in _SLIDING:
            lost, gained = value
            kept = _entries(name, getattr(job, name))[lost:]
            entries = (*kept, *msgspec.convert(gained, _SLIDING[name]))
            new = (
                NoiseTable(initial_batch=job.noise.initial_batch, points=entries)
                if name == "noise"
                else entries
            )
            setattr(job, name, new)
        else:
            setattr(job, name, msgspec.convert(value, FIELDS[name]))


def _entries(name: str, value: Any) -> tuple[Any, ...]:
    entries: tuple[Any, ...] = value.points if name == "noise" else value
    return entries


def _slid(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """The least number of entries that ``old`` lost at its beginning, and those that ``new`` gained at its end."""
    for lost in range(len(old) + 1):
        kept = len(old) - lost
        if kept <= len(new) and old[lost:] == new[:kept]:
            return lost, new[kept:]
    raise AssertionError("nothing kept is always possible")
