"""Placement that minds the network: one node if possible, else fast links without other distributed jobs.

A job that spans nodes sends its gradients over their links, and two such jobs on one node share its link
(``simulation.engine.interference``; Pollux, Qiao et al., OSDI 2021, section 4.2, keeps at most one per node). So:

1. a job that fits one node goes to one: where most of it is already, else where it fits most tightly;
2. any other keeps the nodes it has and adds nodes without another distributed job before those with one, among
   them those with the fastest link (not stated: not limiting), among them the one that takes the rest most
   tightly, else the roomiest.

Nodes with another distributed job are used only when there is no other way: a crowded job beats a waiting one.
"""

from __future__ import annotations

from math import inf

from coadapt.model import Placement, Share
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.placement.packed import PackedPlacer, Room


class LinkedRoom(Room):
    """Knows also which distributed jobs are on which node."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._distributed: dict[str, set[str]] = {}
        for job in snapshot.placed.values():
            self._note(job.target, job.id, here=True)

    def give_back(self, placement: Placement, job: JobView) -> None:
        super().give_back(placement, job)
        self._note(placement, job.id, here=False)

    def take(self, placement: Placement, job: JobView) -> None:
        super().take(placement, job)
        self._note(placement, job.id, here=True)

    def _note(self, placement: Placement, name: str, *, here: bool) -> None:
        nodes = {slot.node for slot in placement.slots}
        for node in nodes if len(nodes) > 1 else ():
            jobs = self._distributed.setdefault(node, set())
            if here:
                jobs.add(name)
            else:
                jobs.discard(name)

    def network(self, node: str, job: str) -> tuple[bool, float]:
        """Sorts nodes: first those without another distributed job, then by speed of the link."""
        return self.crowded(node, job), -self.link(node)

    def crowded(self, node: str, job: str) -> bool:
        """Whether a distributed job other than ``job`` is on the node."""
        return bool(self._distributed.get(node, set()) - {job})

    def link(self, node: str) -> float:
        """Speed of the node's link, bytes/s; infinite where it is not stated."""
        stated = self.snapshot.nodes[node].node.link_bytes_per_s
        return inf if stated is None else stated


class AwarePlacer(PackedPlacer):
    """Bandwidth- and interference-aware."""

    name = "aware"
    order = 40
    room = LinkedRoom

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """Returns the replicas by node: all on one node if any has the ``capacity``, else on nodes with idle network
        links first.

        ``room``, ``job`` and ``share`` as in ``PackedPlacer.spread``.
        """
        assert isinstance(room, LinkedRoom)
        mine = {s.node: s.replicas for s in job.target.slots if s.role == share.role and s.node in capacity}
        whole = [node for node, room_for in capacity.items() if room_for >= share.count]
        if whole:
            best = min(whole, key=lambda n: (-mine.get(n, 0), capacity[n], room.order[n]))
            return {best: share.count}
        counts: dict[str, int] = {}
        left = share.count
        for node in sorted(mine, key=lambda n: (room.network(n, job.id), -mine[n], room.order[n])):
            counts[node] = min(mine[node], capacity[node], left)
            left -= counts[node]
        while left:
            free = {n: c - counts.get(n, 0) for n, c in capacity.items() if c > counts.get(n, 0)}
            best_network = min(room.network(n, job.id) for n in free)
            same = [n for n in free if room.network(n, job.id) == best_network]
            enough = [n for n in same if free[n] >= left]
            if enough:
                node = min(enough, key=lambda n: (n not in counts, free[n], room.order[n]))
            else:
                node = max(same, key=lambda n: (n in counts, free[n], -room.order[n]))
            took = min(left, free[node])
            counts[node] = counts.get(node, 0) + took
            left -= took
        return {n: c for n, c in counts.items() if c}
