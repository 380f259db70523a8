"""Most free first: the placement of the simulator published with Pollux for its baselines.

A new or resized job takes the node with the most free GPUs, as many as it needs, then the next. Jobs choose
in the order the policy names them: by rank (Tiresias) or small ones first (Optimus); no node is kept whole.
"""

from __future__ import annotations

from coadapt.model import Allocation, Share
from coadapt.model.snapshot import JobView
from coadapt.placement.packed import PackedPlacer, Room


class MostFreePlacer(PackedPlacer):
    """Fills the node with the most free GPUs first; ties go to the earlier node."""

    name = "most-free"
    order = 30

    def queue(self, growing: list[tuple[JobView, Allocation]]) -> list[tuple[JobView, Allocation]]:
        """Keeps the order in which the policy named the jobs."""
        return growing

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """Returns the replicas by node, nodes with the largest ``capacity`` first.

        ``room``, ``job`` and ``share`` as in ``PackedPlacer.spread``. Slots the job has are not kept, since every
        change is a restart under this placer.
        """
        counts: dict[str, int] = {}
        left = share.count
        for node in sorted(capacity, key=lambda n: (-capacity[n], room.order[n])):
            if not left:
                break
            counts[node] = min(left, capacity[node])
            left -= counts[node]
        return {n: c for n, c in counts.items() if c}

    def ring(self, room: Room, counts: dict[str, int]) -> list[str]:
        """Keeps the order in which nodes were taken: measured step times distinguish the ring 4-4-3-2 from 4-3-4-2."""
        return list(counts)
