"""Nodes that are taken away at a known time: a job that may not be interrupted starts there only if it ends before.

Jobs that may be preempted start anywhere: they save their state and move before the node goes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from coadapt.model import Allocation, Placement, Reason
from coadapt.model.snapshot import HOLDING
from coadapt.placement import Placer
from coadapt.policies._base import Curves, Proposal
from coadapt.policies.srtf import remaining_s
from coadapt.scheduler.placed_first import with_placements
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState
from coadapt.units import format_duration


class _LongNodes:
    """The state without nodes that are taken away too early. Implements ``model.snapshot.Snapshot``."""

    def __init__(self, state: Any, hidden: Collection[str]) -> None:
        self._state = state
        self.nodes = {name: view for name, view in state.nodes.items() if name not in hidden}
        self.gpus = sum(view.node.gpus for view in self.nodes.values())
        self.free_gpus = self.gpus - sum(view.promised for view in self.nodes.values())

    def __iter__(self) -> Iterator[JobState]:
        return iter(self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def within_ends(
    state: SchedulerState,
    targets: Mapping[str, Placement],
    proposal: Proposal,
    placer: Placer,
    curves: Curves,
) -> tuple[dict[str, Placement], dict[str, Reason]]:
    """Moves starts that would not end in time to nodes that stay, or drops them; returns the targets, and reasons of the latter."""
    kept, reasons = dict(targets), dict[str, Reason]()
    firm = [name for name, target in targets.items() if target and _starts_firm(state.jobs[name])]
    if not firm or all(view.until is None for view in state.nodes.values()):
        return kept, reasons
    per_node = max(view.node.gpus for view in state.nodes.values())
    for name in firm:
        job = state.jobs[name]
        needs_s = _needs_s(job, curves, state.now, per_node)
        short = {
            node: view.until
            for node, view in state.nodes.items()
            if view.until is not None and state.now + needs_s > view.until
        }
        late = [slot.node for slot in kept[name].slots if slot.node in short]
        if not late:
            continue
        others = {each: target for each, target in kept.items() if each != name}
        moved = _elsewhere(state, others, short, name, proposal.allocations, placer)
        if moved is None:
            kept = others
            first = min(late, key=lambda node: short[node])
            reasons[name] = _reason(first, short[first] - state.now, needs_s)
        else:
            kept = moved
    return kept, reasons


def _starts_firm(job: JobState) -> bool:
    return not job.spec.preemptible and job.phase not in HOLDING


def _needs_s(job: JobState, curves: Curves, now: float, gpus_per_node: int) -> float:
    """Seconds that a job needs at most, by its time limit or as predicted; inf: not known."""
    limit_s = job.spec.time_limit_s if job.spec.time_limit_s is not None else math.inf
    if job.spec.batch is not None and not curves[job.id].fitted:
        return limit_s
    return min(limit_s, remaining_s(job, curves, now, gpus_per_node))


def _elsewhere(
    state: SchedulerState,
    others: dict[str, Placement],
    short: Collection[str],
    name: str,
    allocations: Mapping[str, Allocation],
    placer: Placer,
) -> dict[str, Placement] | None:
    """The targets with the job on nodes that stay; None: there is no room for it, and its policy hears why it did not start.

    Jobs that start with it and may be preempted make room for it there, if they all find another place.
    """
    if name not in allocations:
        return None  # the policy places jobs itself
    movable = {
        each: allocations[each]
        for each, target in others.items()
        if target and each in allocations and each in state.waiting and state.jobs[each].spec.preemptible
    }
    stay = frozenset(state.placed)
    for moves in ({}, movable) if movable else ({},):
        beside = {each: target for each, target in others.items() if each not in moves}
        view = _LongNodes(with_placements(state, beside) if beside else state, short)
        found = placer.place(view, {name: allocations[name]}, stay)
        if set(found) != {name} or not found[name]:
            continue
        placed = {**beside, name: found[name]}
        again = placer.place(with_placements(state, placed), moves, stay) if moves else {}
        if set(again) == set(moves) and all(again.values()):
            return {**placed, **again}
    return None


def _reason(node: str, left_s: float, needs_s: float) -> Reason:
    needs = (
        f"needs {format_duration(needs_s)}"
        if math.isfinite(needs_s)
        else "has no known end (give it a time_limit)"
    )
    return Reason(
        code="node-ends",
        text=f"Waiting. Node {node} is taken away in {format_duration(max(left_s, 0.0))}; the job may not be interrupted, and {needs}.",
        numbers={"left_s": round(left_s, 1)}
        | ({"needs_s": round(needs_s, 1)} if math.isfinite(needs_s) else {}),
    )
