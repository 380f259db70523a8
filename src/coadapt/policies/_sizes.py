"""The sizes that options have: so many GPUs of one type.

1, 2, 4 ... up to a node, then whole nodes, which pack without fragments; beyond ``_EVERY_NODE`` nodes in steps of a
quarter. Sizes that a job's bounds name are options of that job alone, and so are whole nodes as far as replicas of several
GPUs fill them. What would not fit the cluster were it empty is no option.
"""

from __future__ import annotations

from collections.abc import Sequence

from coadapt.model import Node
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._requested import gpus_needed

#: Up to so many nodes every number of them is an option.
_EVERY_NODE = 16


def gpus_by_type(
    snapshot: Snapshot, jobs: Sequence[JobView]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """GPU types of the cluster, GPUs of their largest node, GPUs free or held by ``jobs``, and all GPUs."""
    largest: dict[str, int] = {}
    there: dict[str, int] = {}
    capacity: dict[str, int] = {}
    for view in snapshot.nodes.values():
        kind = view.node.gpu_type
        largest[kind] = max(largest.get(kind, 0), view.node.gpus)
        there[kind] = there.get(kind, 0) + view.node.gpus
        capacity[kind] = capacity.get(kind, 0) + view.node.gpus - view.promised
    for job in jobs:
        for slot in job.target.slots:
            if slot.node in snapshot.nodes:
                capacity[slot.gpu_type] += slot.replicas * job.spec.role(slot.role).demand.gpus
    return tuple(largest), tuple(largest.values()), tuple(capacity.values()), tuple(there.values())


def usual_sizes(node: int, capacity: int) -> set[int]:
    """1, 2, 4 ... up to a node, then whole nodes, as far as there are GPUs."""
    if not node:
        return set()
    sizes = {1 << i for i in range(node.bit_length()) if 1 << i < node}
    count = 1
    while count * node <= capacity:
        sizes.add(count * node)
        count = count + 1 if count < _EVERY_NODE else count + count // 4
    return {size for size in sizes if size <= capacity}


def own_sizes(jobs: Sequence[JobView], node: int, capacity: int) -> set[int]:
    """Sizes that jobs have to have: rigid ones, the least of others, and what replicas of several GPUs fill of nodes."""
    sizes = set()
    for job in jobs:
        spec = job.spec
        if is_rigid(job):
            sizes.add(gpus_needed(spec))
            continue
        per = spec.gpus_per_replica
        sizes.add(spec.worker.min * per)
        if per > 1 and node % per:
            filled = node - node % per
            sizes |= {count * filled for count in range(1, min(_EVERY_NODE, capacity // node) + 1)}
    return {size for size in sizes if size > 0}


def most_gpus(snapshot: Snapshot, jobs: Sequence[JobView]) -> dict[str, dict[str, int]]:
    """GPUs by type that a job could take on an empty cluster, of jobs for which these are not simply all there are."""
    picky = [
        job
        for job in jobs
        if job.spec.gpus_per_replica > 1 or any(not role.demand.only_gpus() for role in job.spec.roles)
    ]
    if not picky:
        return {}
    nodes: dict[tuple[object, ...], tuple[Node, int]] = {}
    for view in snapshot.nodes.values():
        node = view.node
        key = (node.gpu_type, node.gpus, node.cpus, node.memory_bytes, *sorted(node.extras.items()))
        nodes[key] = node, nodes.get(key, (node, 0))[1] + 1
    most: dict[str, dict[str, int]] = {}
    known: dict[tuple[object, ...], dict[str, int]] = {}
    for job in picky:
        role = job.spec.worker
        need = role.demand
        key = (role.max, need.gpus, need.cpus, need.memory_bytes, *sorted(need.extras.items()))
        if key not in known:
            known[key] = {}
            for node, count in nodes.values():
                gpus = known[key].get(node.gpu_type, 0) + count * node.takes(need, role.max) * need.gpus
                known[key][node.gpu_type] = gpus
        # every other role has to find its place as well, beside nobody
        others = all(
            sum(count * node.takes(other.demand, other.min) for node, count in nodes.values()) >= other.min
            for other in job.spec.roles[1:]
        )
        most[job.id] = known[key] if others else {}
    return most


def is_rigid(job: JobView) -> bool:
    """Whether the job has one size: that its user asked for."""
    return not job.spec.elastic or job.spec.batch is None or len(job.spec.roles) > 1
