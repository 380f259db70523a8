"""A state as plain nested data: equal digests mean equal states, down to the order of every index."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import NodeState
from coadapt.scheduler.state.state import Moments


def state_digest(state: SchedulerState) -> dict[str, Any]:
    """Every field of the state; jobs and nodes in full where they are kept, by name in the indices."""
    found = {name: _plain(value) for name, value in vars(state).items() if name not in ("jobs", "all_nodes")}
    found["jobs"] = [_slots(job) for job in state.jobs.values()]
    found["all_nodes"] = [_slots(node) for node in state.all_nodes.values()]
    return found


def _slots(thing: JobState | NodeState) -> dict[str, Any]:
    kinds = type(thing).__mro__
    found = {name: _plain(getattr(thing, name)) for kind in kinds for name in getattr(kind, "__slots__", ())}
    # where nothing is shared, a state has the digest that it had before GPUs could be
    if isinstance(thing, NodeState):
        for name in ("held_groups", "promised_groups"):
            if not found[name]:
                del found[name]
    elif found["held_charge"] == found["held_gpus"]:
        del found["held_charge"]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, JobState):
        return value.id
    if isinstance(value, NodeState):
        return value.node.name
    if isinstance(value, Moments):
        return sorted(value.items())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, msgspec.to_builtins(value)
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]  # a list: order counts
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{value!r} has no place in a digest")
