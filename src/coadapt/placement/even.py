"""Even placement over the fewest nodes: how Optimus places jobs with parameter servers.

Peng et al., "Optimus" (EuroSys 2018), section 4.2: with workers and servers both spread evenly over the same k nodes, each
server exchanges the least data over its node's link, and the fewer the nodes the less crosses links at all. So
for k = 1, 2, ... the k emptiest nodes are tried; on each go floor or ceil of count / k replicas of every role. Small
jobs choose first.

Where we deviate: the paper shrinks a job that fits no such set; ours is packed as well as it can be, for the
policy has decided its size. A job of one role (all-reduce) is placed in the same way.
"""

from __future__ import annotations

from coadapt.model import NOWHERE, Allocation, Placement, Slot
from coadapt.model.snapshot import JobView
from coadapt.placement.packed import PackedPlacer, Room


class EvenPlacer(PackedPlacer):
    """The fewest nodes over which every role can be spread evenly."""

    name = "even"
    order = 60

    def queue(self, growing: list[tuple[JobView, Allocation]]) -> list[tuple[JobView, Allocation]]:
        """Orders the jobs by size, small ones first."""
        return sorted(growing, key=lambda item: sum(share.count for share in item[1].shares))

    def find(self, room: Room, job: JobView, allocation: Allocation) -> Placement | None:
        """Spreads every role evenly over the fewest nodes possible; where none will do, places as ``PackedPlacer``."""
        kinds = {share.gpu_type for share in allocation.shares if share.gpu_type}
        nodes = room.nodes_for(job, kinds.pop() if len(kinds) == 1 else "", 0)
        if not job.spec.mixed and len({room.snapshot.nodes[n].node.gpu_type for n in nodes}) > 1:
            return super().find(room, job, allocation)
        nodes.sort(key=lambda n: (-room.free[n], room.order[n]))
        most = max((share.count for share in allocation.shares), default=0)
        for count in range(1, min(len(nodes), most) + 1):
            found = self._try(room, job, allocation, sorted(nodes[:count], key=room.order.__getitem__))
            if found is not None:
                return found
        return super().find(room, job, allocation)

    def _try(self, room: Room, job: JobView, allocation: Allocation, nodes: list[str]) -> Placement | None:
        """Every role spread evenly over exactly these nodes, the roomiest taking what is over; or None."""
        by_room = sorted(nodes, key=lambda n: (-room.free[n], room.order[n]))
        taken = NOWHERE
        whole = True
        for share in allocation.shares:
            each, over = divmod(share.count, len(nodes))
            demand = job.spec.role(share.role).demand
            for node in nodes:
                replicas = each + (node in by_room[:over])
                if not replicas:
                    continue
                whole = whole and room.fits(node, demand, replicas)
                kind = room.snapshot.nodes[node].node.gpu_type
                slot = Slot(node=node, replicas=replicas, gpu_type=kind, role=share.role)
                # the next role finds only what this one leaves
                room.take(Placement(slots=(slot,)), job)
                taken = Placement(slots=(*taken.slots, slot))
        room.give_back(taken, job)
        return taken if whole else None
