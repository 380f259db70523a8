"""What a change of placement costs: seconds without progress while the GPUs are held."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coadapt.model import JobSpec, Placement

#: (job, placement before, placement after) -> seconds
ChangeCost = Callable[[JobSpec, Placement, Placement], float]


def constant(seconds: float) -> ChangeCost:
    """The same for every job and change, as in the published simulations (30 s)."""
    return lambda spec, before, after: seconds


def by_profile(seconds: Mapping[str, float], otherwise: float) -> ChangeCost:
    """By the job's profile, as in Sia's simulations."""
    return lambda spec, before, after: seconds.get(spec.profile, otherwise)


def by_kind(*, start: float, grow: float, shrink: float, move: float) -> ChangeCost:
    """By what changes: the first start, more replicas, fewer replicas, or other nodes."""

    def cost(spec: JobSpec, before: Placement, after: Placement) -> float:
        if not before:
            return start
        kept = {slot.node for slot in before.slots}
        if after.replicas > before.replicas:
            return grow if kept <= {slot.node for slot in after.slots} else move
        return shrink if {slot.node for slot in after.slots} <= kept else move

    return cost
