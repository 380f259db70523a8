"""Packed placement: as few nodes as possible, without breaking up empty nodes needlessly.

A job that fits one node goes to the node it fits most tightly (best fit); a larger one takes the
emptiest nodes first. Slots that a job has already are kept where its size allows it: a job that shrinks
leaves its smallest shares first, one that grows stays and adds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coadapt.model import NOWHERE, Allocation, Placement, Resources, Share, Slot
from coadapt.model.resources import ROUNDING
from coadapt.model.snapshot import JobView, Snapshot


class Room:
    """The free resources of each node while a proposal is being placed: GPUs, and other resources that jobs ask for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.order = {name: i for i, name in enumerate(snapshot.nodes)}
        self.free = {name: view.node.gpus - view.promised for name, view in snapshot.nodes.items()}
        #: CPU, memory and extras taken in this proposal, by node and name.
        self._taken: dict[tuple[str, str], float] = {}

    def give_back(self, placement: Placement, job: JobView) -> None:
        """Frees ``placement`` of the job."""
        self._add(placement, job, -1)

    def take(self, placement: Placement, job: JobView) -> None:
        """Reserves ``placement`` for the job."""
        self._add(placement, job, 1)

    def _add(self, placement: Placement, job: JobView, sign: int) -> None:
        for slot in placement.slots:
            if slot.node not in self.free:
                continue
            demand = job.spec.role(slot.role).demand
            self.free[slot.node] -= sign * slot.replicas * demand.gpus
            if demand.only_gpus():
                continue
            for name, amount in demand.others(slot.replicas):
                key = (slot.node, name)
                self._taken[key] = self._taken.get(key, 0.0) + sign * amount

    def nodes_for(self, job: JobView, gpu_type: str, gpus: int = 1) -> list[str]:
        """Nodes with enough free GPUs that the job may use."""
        allowed = (gpu_type,) if gpu_type else job.spec.gpu_types
        views = self.snapshot.nodes
        return [
            n
            for n, free in self.free.items()
            if free >= gpus and (not allowed or views[n].node.gpu_type in allowed)
        ]

    def fits(self, node: str, demand: Resources, replicas: int) -> bool:
        """Whether the node has everything that this number of further replicas needs."""
        if replicas * demand.gpus > self.free[node]:
            return False
        view = self.snapshot.nodes[node]
        return all(
            view.promised_other.get(name, 0.0) + self._taken.get((node, name), 0.0) + amount
            <= view.node.limit(name) * ROUNDING
            for name, amount in demand.others(replicas)
        )


class PackedPlacer:
    """The default placer."""

    name = "packed"
    order = 10
    #: What keeps track of free places; a subclass may need to know more.
    room = Room

    def place(
        self, snapshot: Snapshot, allocations: Mapping[str, Allocation], fixed: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Places the allocations of a proposal (``Placer.place``), larger jobs first, since they are the hardest to fit."""
        return self.place_in(self.room(snapshot), allocations)

    def place_in(self, room: Room, allocations: Mapping[str, Allocation]) -> dict[str, Placement]:
        """Places the allocations in the given ``room``."""
        snapshot = room.snapshot
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
        """Returns the jobs in the order they are placed: most GPUs first."""
        return sorted(growing, key=lambda item: -item[1].workers * item[0].spec.gpus_per_replica)

    def find(self, room: Room, job: JobView, allocation: Allocation) -> Placement | None:
        """Finds slots for ``allocation`` of ``job`` in ``room``; None if they do not fit."""
        if len(allocation.shares) == 1:
            slots = self._find_share(room, job, allocation.shares[0])
            return None if slots is None else Placement(slots=tuple(slots))
        taken = NOWHERE
        for share in allocation.shares:
            slots = self._find_share(room, job, share)
            if slots is None:
                room.give_back(taken, job)
                return None
            # the next role finds only what this one leaves
            room.take(Placement(slots=tuple(slots)), job)
            taken = Placement(slots=(*taken.slots, *slots))
        room.give_back(taken, job)
        return taken

    def _find_share(self, room: Room, job: JobView, share: Share) -> list[Slot] | None:
        capacity = replicas_that_fit(room, job, share)
        if not share.gpu_type and not job.spec.mixed:
            capacity = _one_type(room, capacity, share.count)
        if sum(capacity.values()) < share.count:
            return None
        return self.slots(room, share, self.spread(room, job, share, capacity))

    def slots(self, room: Room, share: Share, counts: dict[str, int]) -> list[Slot]:
        """Turns ``counts`` (replicas by node) of ``share`` into slots, in ring order."""
        views = room.snapshot.nodes
        return [
            Slot(node=n, replicas=counts[n], gpu_type=views[n].node.gpu_type, role=share.role)
            for n in self.ring(room, counts)
        ]

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """Returns the replicas by node: slots the job has first, then the tightest node that takes the rest, then the
        emptiest.

        Args:
            room: what is free during this placement.
            job: the job to place.
            share: the role and the number of replicas.
            capacity: replicas of the share that each node could take; at least ``share.count`` in all.
        """
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
        """Returns the nodes in the order in which replicas are numbered, which is the order of the all-reduce ring."""
        return sorted(counts, key=room.order.__getitem__)


def replicas_that_fit(room: Room, job: JobView, share: Share) -> dict[str, int]:
    """Returns how many replicas of ``share`` each node that ``job`` may use could take."""
    demand = job.spec.role(share.role).demand
    capacity = {
        n: room.free[n] // demand.gpus if demand.gpus else share.count
        for n in room.nodes_for(job, share.gpu_type, demand.gpus)
    }
    if demand.only_gpus():
        return capacity
    return {n: _most(room, n, demand, c) for n, c in capacity.items()}


def _most(room: Room, node: str, demand: Resources, limit: int) -> int:
    return next((count for count in range(limit, 0, -1) if room.fits(node, demand, count)), 0)


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
    """Whether the job's target is still free; roles that share a node are checked one after the other."""
    if any(slot.node not in room.free for slot in job.target.slots):
        return False
    taken = NOWHERE
    for slot in job.target.slots:
        if not room.fits(slot.node, job.spec.role(slot.role).demand, slot.replicas):
            break
        room.take(Placement(slots=(slot,)), job)
        taken = Placement(slots=(*taken.slots, slot))
    room.give_back(taken, job)
    return len(taken.slots) == len(job.target.slots)
