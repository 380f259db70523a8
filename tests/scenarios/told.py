"""A log told in short lines, and a policy that does what a test says: scenarios are compared line by line."""

from __future__ import annotations

from collections.abc import Sequence

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    Allocation,
    DecisionMade,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    Record,
    ReplicasReleased,
    ResizeJob,
    StartJob,
    workers,
)
from coadapt.model.snapshot import Snapshot
from coadapt.policies import Curves, Memory, Proposal, Rng


def where(placement: Placement) -> str:
    return "+".join(f"{slot.node}x{slot.replicas}" for slot in placement.slots)


def told(records: Sequence[Record]) -> list[str]:
    """Actions and reports only: "at what job ..."."""
    lines: list[str] = []
    for record in records:
        event = record.event
        at = f"{record.at:g}"
        if isinstance(event, ActionsIssued):
            for action in event.actions:
                if isinstance(action, StartJob):
                    lines.append(f"{at} start {action.job} #{action.attempt} on {where(action.placement)}")
                elif isinstance(action, ResizeJob):
                    lines.append(f"{at} resize {action.job} to {where(action.placement)}")
                else:
                    lines.append(f"{at} stop {action.job} ({action.why})")
        elif isinstance(event, JobStarted):
            lines.append(f"{at} started {event.job}")
        elif isinstance(event, ReplicasReleased):
            lines.append(f"{at} released {event.job}")
        elif isinstance(event, JobResized):
            lines.append(f"{at} resized {event.job}")
        elif isinstance(event, JobStopped):
            lines.append(f"{at} stopped {event.job} ({event.cause})")
        elif isinstance(event, JobFinished):
            lines.append(f"{at} {event.outcome} {event.job}")
    return lines


def decided_at(records: Sequence[Record]) -> list[float]:
    return [record.at for record in records if isinstance(record.event, DecisionMade)]


class Script:
    """Gives what a test says at given times; jobs not named then keep what they have."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def __init__(self, *steps: tuple[float, dict[str, Placement]]) -> None:
        self.steps = steps

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        placements: dict[str, Placement] = {}
        for at, wanted in self.steps:
            if at <= snapshot.now and str(at) not in memory.kept:
                placements.update(wanted)
        done = {str(at): True for at, _ in self.steps if at <= snapshot.now}
        later = [at for at, _ in self.steps if at > snapshot.now]
        return Proposal(
            placements={n: p for n, p in placements.items() if n in snapshot.active},
            memory=done,
            wake_at=min(later, default=None),
        )


class Preemptive:
    """The highest priority first; the others lose their GPUs."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        free = snapshot.gpus
        changes: dict[str, Allocation] = {}
        for job in sorted(snapshot.active.values(), key=lambda j: (-j.spec.priority, j.order)):
            runs = job.spec.requested_gpus <= free
            free -= job.spec.requested_gpus if runs else 0
            if runs and not job.target:
                changes[job.id] = workers(job.spec.requested)
            elif job.target and not runs:
                changes[job.id] = Allocation()
        return Proposal(allocations=changes)


__all__ = ["NOWHERE", "Preemptive", "Script", "decided_at", "told", "where"]
