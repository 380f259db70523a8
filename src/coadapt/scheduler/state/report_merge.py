"""The fields of a job that its reports change, as plain data: what ``ReportsMerged`` holds.

``plain`` writes fields down, ``apply`` sets them again. Values are whole, not differences: applied to a state that has
seen some of the reports, they give the same. Every bit is kept: floats go through JSON by their shortest exact form,
mappings keep their order.
"""

from __future__ import annotations

from collections.abc import Set
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
#: The large ones, which predictors use.
TABLES = frozenset(["table", "server_table", "noise", "course", "stretches"])

Values = tuple[Any, ...]
#: The fields of a job; the values are frozen or replaced as a whole, so they stay what they were.
values_of = attrgetter(*FIELDS)


def changed(before: Values, after: Values) -> set[str]:
    """Returns the names of fields that have another value, or the same one anew."""
    return {name for name, old, new in zip(FIELDS, before, after, strict=True) if new is not old}


def plain(values: Values, names: Set[str]) -> dict[str, Any]:
    """Returns the fields with these names as plain data."""
    found = zip(FIELDS, values, strict=True)
    return {name: msgspec.to_builtins(value) for name, value in found if name in names}


def apply(job: JobState, found: dict[str, Any]) -> None:
    """Sets the fields in ``found``, as ``plain`` returned them."""
    for name, value in found.items():
        setattr(job, name, msgspec.convert(value, FIELDS[name]))
