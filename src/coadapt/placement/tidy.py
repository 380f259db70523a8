"""Placement that keeps jobs whole: a job that fits one node gets one, and others make room where they must.

1. a job that fits one node: the node it has, if it fits there; else the one it fits most tightly;
2. a larger one: the nodes it has to itself, then empty nodes, as many as it needs;
3. where there is no such place although the GPUs are there, in pieces: small jobs move out of the node that is
   cheapest to clear, into the gaps elsewhere (defragmentation), if what moves is less than what gains by it;
4. else as ``PackedPlacer``: in pieces.

With jobs of 1, 2, 4 GPUs and whole nodes on nodes of four (powers of two), step 3 always finds a place. A job that may not
be preempted, or has several roles, does not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from coadapt.model import Allocation, Placement, Share, Slot
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.placement.packed import PackedPlacer, Room

#: At most so many jobs make room on a node, of so many that are looked at.
_MOST_MOVES, _MOST_JOBS = 4, 6


class TidyRoom(Room):
    """Knows also who could move out of a node, and who has."""

    def __init__(self, snapshot: Snapshot, changing: frozenset[str]) -> None:
        super().__init__(snapshot)
        self.moved: dict[str, Placement] = {}
        self._changing = changing
        self._small: dict[str, dict[str, JobView]] | None = None
        self._largest: dict[str, int] = {}

    def largest(self, gpu_type: str) -> int:
        """GPUs of the largest node of a type ("": of any)."""
        if not self._largest:
            for view in self.snapshot.nodes.values():
                for kind in ("", view.node.gpu_type):
                    self._largest[kind] = max(self._largest.get(kind, 0), view.node.gpus)
        return self._largest.get(gpu_type, 0)

    def movable(self, node: str) -> list[JobView]:
        """Jobs of this node alone that may leave it and take nothing but GPUs, smallest first."""
        if self._small is None:
            self._small = {}
            for job in self.snapshot.placed.values():
                slots = job.target.slots
                if len(slots) == 1 and job.id not in self._changing and _may_move(job):
                    self._small.setdefault(slots[0].node, {})[job.id] = job
        jobs = [job for name, job in self._small.get(node, {}).items() if name not in self.moved]
        return sorted(jobs, key=lambda job: (job.target_gpus, job.order))

    def move(self, job: JobView, placement: Placement) -> None:
        """A job that was not asked makes room."""
        self.give_back(job.target, job)
        self.take(placement, job)
        self.moved[job.id] = placement


def _may_move(job: JobView) -> bool:
    free = job.spec.preemptible or job.phase not in HOLDING
    return free and len(job.spec.roles) == 1 and job.spec.worker.demand.only_gpus()


class TidyPlacer(PackedPlacer):
    """The placer of the product's own policy."""

    def place(self, snapshot: Snapshot, allocations: Mapping[str, Allocation]) -> dict[str, Placement]:
        """See ``Placer``; jobs that make room are among the answers."""
        room = TidyRoom(snapshot, frozenset(allocations))
        placed = self.place_in(room, allocations)
        return {**placed, **room.moved}

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """See ``PackedPlacer.spread``."""
        assert isinstance(room, TidyRoom)
        demand = job.spec.role(share.role).demand
        if not demand.gpus:
            return super().spread(room, job, share, capacity)
        largest = room.largest(share.gpu_type) // demand.gpus
        mine = {s.node: s.replicas for s in job.target.slots if s.role == share.role}
        wanted = [largest] * (share.count // max(largest, 1)) if share.count > largest else [share.count]
        if sum(wanted) < share.count:
            wanted.append(share.count - sum(wanted))
        # only jobs that ask for nothing but single GPUs know what clearing a node gives them
        simple = demand.gpus == 1 and demand.only_gpus() and len(job.spec.roles) == 1
        counts: dict[str, int] = {}
        for count in wanted:
            fits = [n for n, c in capacity.items() if c >= count and n not in counts]
            node = min(fits, key=lambda n: (-mine.get(n, 0), capacity[n], room.order[n]), default=None)
            if node is None and simple:
                node = _cleared(room, count, share.gpu_type, counts)
            if node is None:
                return super().spread(room, job, share, {n: c for n, c in capacity.items() if room.free[n]})
            counts[node] = count
        return counts


def _cleared(room: TidyRoom, need: int, gpu_type: str, taken: Mapping[str, int]) -> str | None:
    """The node that is cheapest to clear, cleared; None if there is none, or it would move more than it serves."""
    best: tuple[int, int, int] | None = None
    found: tuple[str, list[tuple[JobView, str]]] | None = None
    nodes = room.snapshot.nodes
    for node, free in sorted(room.free.items(), key=lambda item: -item[1]):
        if nodes[node].node.gpus < need or node in taken or gpu_type not in ("", nodes[node].node.gpu_type):
            continue
        if best is not None and best[0] <= need - free:
            break  # the others have to clear more
        plan = _plan(room, node, need - free, need, taken)
        if plan is not None:
            key = (sum(job.target_gpus for job, _ in plan), len(plan), room.order[node])
            if best is None or key < best:
                best, found = key, (node, plan)
    if found is None:
        return None
    for job, to in found[1]:
        slot = job.target.slots[0]
        room.move(job, Placement(slots=(Slot(node=to, replicas=slot.replicas, gpu_type=slot.gpu_type),)))
    return found[0]


def _plan(
    room: TidyRoom, node: str, missing: int, most: int, taken: Mapping[str, int]
) -> list[tuple[JobView, str]] | None:
    """Who leaves the node for where, so that ``missing`` GPUs come free by moving at most ``most``."""
    jobs = room.movable(node)[:_MOST_JOBS]
    choices = []
    for count in range(1, min(len(jobs), _MOST_MOVES) + 1):
        for some in combinations(jobs, count):
            gpus = sum(job.target_gpus for job in some)
            if missing <= gpus <= most:
                choices.append((gpus, count, some))
    for _, _, some in sorted(choices, key=lambda choice: choice[:2]):
        plan, free = [], {n: f for n, f in room.free.items() if f and n != node and n not in taken}
        kind = room.snapshot.nodes[node].node.gpu_type
        for job in sorted(some, key=lambda job: -job.target_gpus):
            fits = [
                n
                for n, f in free.items()
                if f >= job.target_gpus and room.snapshot.nodes[n].node.gpu_type == kind
            ]
            to = min(fits, key=lambda n: (free[n], room.order[n]), default=None)
            if to is None:
                break
            free[to] -= job.target_gpus
            plan.append((job, to))
        else:
            return plan
    return None
