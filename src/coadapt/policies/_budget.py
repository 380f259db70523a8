"""The resources that a decision may still give away: GPUs by type, CPU cores and memory of the whole cluster.

The budget counts totals; whether the pieces lie on the same node is decided by the placer. CPU and memory count only
where every node states them.
"""

from __future__ import annotations

from collections.abc import Iterable

from coadapt.model import JobSpec, Resources, Role
from coadapt.model.snapshot import JobView, Snapshot


class Budget:
    """Begins with what no target has taken; ``give_back`` adds what a job would leave."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gpus: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self.cpus = self.memory_bytes = 0.0
        limited_cpus = limited_memory = True
        for view in snapshot.nodes.values():
            node = view.node
            kind = node.gpu_type
            self.gpus[kind] = self.gpus.get(kind, 0) + node.gpus - view.promised
            self.largest[kind] = max(self.largest.get(kind, 0), node.gpus)
            limited_cpus, limited_memory = (
                limited_cpus and node.cpus is not None,
                limited_memory and (node.memory_bytes is not None),
            )
            self.cpus += node.cpus or 0.0
            self.memory_bytes += node.memory_bytes or 0.0
        self.limited_cpus, self.limited_memory = limited_cpus, limited_memory
        #: What the cluster has in all, to measure shares by.
        self.total = Resources(
            gpus=snapshot.gpus,
            cpus=self.cpus if limited_cpus else 0.0,
            memory_bytes=self.memory_bytes if limited_memory else 0.0,
        )
        if limited_cpus or limited_memory:
            self._add_others(snapshot.placed.values(), -1)

    def _add_others(self, jobs: Iterable[JobView], sign: int) -> None:
        for job in jobs:
            for slot in job.target.slots:
                demand = job.spec.role(slot.role).demand
                self.cpus += sign * slot.replicas * demand.cpus
                self.memory_bytes += sign * slot.replicas * demand.memory_bytes

    def give_back(self, job: JobView) -> None:
        """Counts the job's target as free."""
        for slot in job.target.slots:
            gpus = slot.replicas * job.spec.role(slot.role).demand.gpus
            self.gpus[slot.gpu_type] = self.gpus.get(slot.gpu_type, 0) + gpus
        self._add_others((job,), 1)

    def fits(self, demand: Resources, count: int, gpu_type: str) -> bool:
        """Whether the budget covers ``count`` more replicas with ``demand`` each."""
        return (
            demand.gpus * count <= self.gpus.get(gpu_type, 0)
            and (not self.limited_cpus or demand.cpus * count <= self.cpus)
            and (not self.limited_memory or demand.memory_bytes * count <= self.memory_bytes)
        )

    def take(self, demand: Resources, count: int, gpu_type: str) -> None:
        """Subtracts ``count`` replicas with ``demand`` each."""
        self.gpus[gpu_type] -= demand.gpus * count
        self.cpus -= demand.cpus * count
        self.memory_bytes -= demand.memory_bytes * count

    def type_for(self, spec: JobSpec, counts: Iterable[tuple[Role, int]], current: str = "") -> str | None:
        """Returns the GPU type on which all of ``counts`` fit: ``current`` if possible, else the first; None if there is
        none.
        """
        wanted = list(counts)
        allowed = [kind for kind in (spec.gpu_types or self.gpus) if kind in self.gpus]
        if current in allowed:
            allowed = [current, *allowed]
        for kind in allowed:
            if spec.gpus_per_replica <= self.largest[kind] and self.fits(_sum(wanted), 1, kind):
                return kind
        return None

    def dominant_share(self, demand: Resources) -> float:
        """Returns the largest share of any one resource of the cluster that ``demand`` takes (DRF)."""
        total = self.total
        return max(
            demand.gpus / total.gpus if total.gpus else 0.0,
            demand.cpus / total.cpus if total.cpus else 0.0,
            demand.memory_bytes / total.memory_bytes if total.memory_bytes else 0.0,
        )


def _sum(counts: Iterable[tuple[Role, int]]) -> Resources:
    gpus, cpus, memory_bytes = 0, 0.0, 0.0
    for role, count in counts:
        gpus += role.demand.gpus * count
        cpus += role.demand.cpus * count
        memory_bytes += role.demand.memory_bytes * count
    return Resources(gpus=gpus, cpus=cpus, memory_bytes=memory_bytes)
