"""Placement by model skew: consolidate only the jobs that suffer from being spread.

Gu et al., "Tiresias" (NSDI 2019), section 3.3: models whose parameters lie mostly in one or few tensors send them
in bursts and need to be on few nodes; the others may run anywhere, and should take the fragments. The
released simulator contains no such placement; this follows the paper's text.

A job counts as skewed if its spec says so (``envs: {COADAPT_SKEWED: "1"}``, "0" for not), else if its profile is in
``skewed``. The default table holds the models the paper names as skewed (AlexNet and the VGGs); the shipped profiles
are not among them, for their tensors were not published. A skewed job goes to as few nodes as the free GPUs
allow; with ``wait=True`` it is not placed at all unless these are as few as its size needs, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable

from coadapt.model import Allocation, Placement, Share
from coadapt.model.snapshot import JobView
from coadapt.placement.packed import PackedPlacer, Room

#: Named as skewed by the paper.
SKEWED = ("alexnet", "vgg11", "vgg16", "vgg19")
MARK = "COADAPT_SKEWED"


class SkewPlacer(PackedPlacer):
    """Skewed jobs on few nodes, others into the smallest fragments."""

    name = "skew"
    order = 50

    def __init__(self, *, skewed: Iterable[str] = SKEWED, wait: bool = False) -> None:
        self.skewed, self.wait = frozenset(skewed), wait

    def is_skewed(self, job: JobView) -> bool:
        """Whether the job must be consolidated on few nodes."""
        mark = job.spec.envs.get(MARK)
        return job.spec.profile in self.skewed if mark is None else mark not in ("", "0")

    def find(self, room: Room, job: JobView, allocation: Allocation) -> Placement | None:
        """Finds slots as ``PackedPlacer``; with ``wait``, None for a skewed job unless they are on the fewest possible
        nodes.
        """
        found = super().find(room, job, allocation)
        if found is None or not self.wait or not self.is_skewed(job):
            return found
        views = room.snapshot.nodes
        largest = max(views[slot.node].node.gpus for slot in found.slots)
        gpus = sum(slot.replicas * job.spec.role(slot.role).demand.gpus for slot in found.slots)
        nodes = len({slot.node for slot in found.slots})
        return found if nodes <= -(-gpus // largest) else None

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """Returns the replicas by node: on the fewest nodes for a skewed ``job``, else the smallest fragments of
        ``capacity`` first.

        ``room`` and ``share`` as in ``PackedPlacer.spread``.
        """
        if self.is_skewed(job):
            return _fewest(room, share.count, capacity)
        mine = {s.node: s.replicas for s in job.target.slots if s.role == share.role and s.node in capacity}
        counts: dict[str, int] = {}
        left = share.count
        for node in sorted(capacity, key=lambda n: (-mine.get(n, 0), capacity[n], room.order[n])):
            if not left:
                break
            counts[node] = min(left, capacity[node])
            left -= counts[node]
        return {n: c for n, c in counts.items() if c}


def _fewest(room: Room, count: int, capacity: dict[str, int]) -> dict[str, int]:
    """The emptiest nodes, and for the rest the one it fits most tightly."""
    counts: dict[str, int] = {}
    left, free = count, dict(capacity)
    while left:
        enough = [n for n, c in free.items() if c >= left]
        if enough:
            node = min(enough, key=lambda n: (free[n], room.order[n]))
        else:
            node = max(free, key=lambda n: (free[n], -room.order[n]))
        counts[node] = min(left, free.pop(node))
        left -= counts[node]
    return counts
