"""The state as a placer sees it when the policy has placed some jobs itself: their nodes are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coadapt.model import Node, Placement
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import Needs, more_gpus
from coadapt.scheduler.state.state import SchedulerState


class _TakenNode:
    """Implements ``model.snapshot.NodeView``."""

    __slots__ = ("node", "promised", "promised_other")

    def __init__(self, node: Node, promised: int, promised_other: Mapping[str, float]) -> None:
        self.node, self.promised, self.promised_other = node, promised, promised_other


class PlacedFirst:
    """The state with the placements of some jobs taken, and without these jobs. Implements ``model.snapshot.Snapshot``.

    A node may be taken beyond what it has until the jobs that leave it are given back: the policy names them.
    """

    def __init__(self, state: SchedulerState, placements: Mapping[str, Placement]) -> None:
        self._state = state
        needs = Needs()
        for name, target in placements.items():
            job = state.active[name]
            needs.add(target.slots, job.spec)
            needs.add(job.target.slots, job.spec, -1)
        self.nodes: dict[str, Any] = dict(state.nodes)
        for name in {**needs.gpus, **needs.shared}:
            view = state.nodes.get(name)
            if view is not None:
                gpus = needs.gpus.get(name, 0) + more_gpus(view.promised_groups, needs.shared.get(name, {}))
                other = dict(view.promised_other)
                for what, amount in needs.other.get(name, {}).items():
                    other[what] = other.get(what, 0.0) + amount
                self.nodes[name] = _TakenNode(view.node, view.promised + gpus, other)
        self.placed = {name: job for name, job in state.placed.items() if name not in placements}

    def __iter__(self) -> Iterator[JobState]:
        return iter(self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def with_placements(state: SchedulerState, placements: Mapping[str, Placement]) -> Any:
    """Returns the state as a placer sees it beside ``placements``."""
    return PlacedFirst(state, placements)
