"""Packed placement: as few nodes as possible, without breaking up empty nodes needlessly.

A job that fits one node goes to the node it fits most tightly (best fit); a larger one takes the
emptiest nodes first. Slots that a job has already are kept where its size allows it: a job that shrinks
leaves its smallest shares first, one that grows stays and adds.
"""

from __future__ import annotations

from collections.abc import Mapping

from coadapt.model import NOWHERE, Allocation, Placement, Share, Slot
from coadapt.model.snapshot import JobView, Snapshot


class Room:
    """Free GPUs per node while a proposal is being placed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.order = {name: i for i, name in enumerate(snapshot.nodes)}
        self.free = {name: view.node.gpus - view.promised for name, view in snapshot.nodes.items()}

    def give_back(self, placement: Placement, job: JobView) -> None:
        """The job leaves what it was promised."""
        for slot in placement.slots:
            if slot.node in self.free:
                self.free[slot.node] += slot.replicas * job.spec.role(slot.role).demand.gpus

    def take(self, placement: Placement, job: JobView) -> None:
        """The job is promised ``placement``."""
        for slot in placement.slots:
            self.free[slot.node] -= slot.replicas * job.spec.role(slot.role).demand.gpus

    def nodes_for(self, job: JobView, gpu_type: str) -> list[str]:
        """Nodes with free GPUs that the job may use."""
        allowed = (gpu_type,) if gpu_type else job.spec.gpu_types
        views = self.snapshot.nodes
        return [n for n, free in self.free.items() if free > 0 and (not allowed or views[n].node.gpu_type in allowed)]


class PackedPlacer:
    """The default placer."""

    def place(self, snapshot: Snapshot, allocations: Mapping[str, Allocation]) -> dict[str, Placement]:
        """See ``Placer``. Larger jobs first, since they are the hardest to fit."""
        room = Room(snapshot)
        placed: dict[str, Placement] = {}
        growing: list[tuple[JobView, Allocation]] = []
        for name, allocation in allocations.items():
            job = snapshot.active[name]
            room.give_back(job.target, job)
            if allocation:
                growing.append((job, allocation))
            else:
                placed[name] = NOWHERE
        for job, allocation in self.queue(growing):
            found = self.find(room, job, allocation)
            if found is None:
                # it keeps what it has, if that is still there
                if job.target and _fits_back(room, job):
                    room.take(job.target, job)
                elif job.target:
                    placed[job.id] = NOWHERE
                continue
            room.take(found, job)
            placed[job.id] = found
        return placed

    def queue(self, growing: list[tuple[JobView, Allocation]]) -> list[tuple[JobView, Allocation]]:
        """In which order jobs choose."""
        return sorted(growing, key=lambda item: -item[1].workers * item[0].spec.gpus_per_replica)

    def find(self, room: Room, job: JobView, allocation: Allocation) -> Placement | None:
        """Slots for one job, or None."""
        slots: list[Slot] = []
        for share in allocation.shares:
            found = self._find_share(room, job, share)
            if found is None:
                return None
            slots += found
        return Placement(slots=tuple(slots))

    def _find_share(self, room: Room, job: JobView, share: Share) -> list[Slot] | None:
        demand = job.spec.role(share.role).demand
        capacity = {n: room.free[n] // demand.gpus if demand.gpus else share.count for n in room.nodes_for(job, share.gpu_type)}
        if not demand.only_gpus():
            capacity = {n: self._most(room, n, job, share.role, c) for n, c in capacity.items()}
        if not share.gpu_type and not job.spec.mixed:
            capacity = _one_type(room, capacity, share.count)
        if sum(capacity.values()) < share.count:
            return None
        counts = self.spread(room, job, share, capacity)
        views = room.snapshot.nodes
        return [
            Slot(node=n, replicas=counts[n], gpu_type=views[n].node.gpu_type, role=share.role)
            for n in self.ring(room, counts)
        ]

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """Replicas per node: kept slots first, then the tightest node that takes the rest, then the emptiest."""
        counts: dict[str, int] = {}
        left = share.count
        mine = {s.node: s.replicas for s in job.target.slots if s.role == share.role and s.node in capacity}
        for node in sorted(mine, key=lambda n: (-mine[n], room.order[n])):
            counts[node] = min(mine[node], capacity[node], left)
            left -= counts[node]
        while left:
            room_left = {n: c - counts.get(n, 0) for n, c in capacity.items() if c > counts.get(n, 0)}
            enough = [n for n, c in room_left.items() if c >= left]
            if enough:
                node = min(enough, key=lambda n: (n not in counts, room_left[n], room.order[n]))
            else:
                node = max(room_left, key=lambda n: (room_left[n], -room.order[n]))
            took = min(left, room_left[node])
            counts[node] = counts.get(node, 0) + took
            left -= took
        return {n: c for n, c in counts.items() if c}

    def ring(self, room: Room, counts: dict[str, int]) -> list[str]:
        """The nodes in the order replicas are numbered in, which is the order they pass gradients on."""
        return sorted(counts, key=room.order.__getitem__)

    @staticmethod
    def _most(room: Room, node: str, job: JobView, role: str, limit: int) -> int:
        for count in range(limit, 0, -1):
            if room.snapshot.fits(node, job.spec, role, count, room.free[node]):
                return count
        return 0


def _one_type(room: Room, capacity: dict[str, int], count: int) -> dict[str, int]:
    """The nodes of the first GPU type that has room for all replicas (else of the roomiest)."""
    views = room.snapshot.nodes
    by_type: dict[str, dict[str, int]] = {}
    for node, amount in capacity.items():
        by_type.setdefault(views[node].node.gpu_type, {})[node] = amount
    for nodes in by_type.values():
        if sum(nodes.values()) >= count:
            return nodes
    return max(by_type.values(), key=lambda nodes: sum(nodes.values()), default={})


def _fits_back(room: Room, job: JobView) -> bool:
    return all(
        slot.node in room.free and room.free[slot.node] >= slot.replicas * job.spec.role(slot.role).demand.gpus
        for slot in job.target.slots
    )
