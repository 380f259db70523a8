"""What each job could be given, and how fast it would get on with it: rows are jobs, columns are options.

An option is so many GPUs of one type: 1, 2, 4 ... up to a node, then whole nodes, which pack without fragments; beyond
``_EVERY_NODE`` nodes in steps of a quarter. Sizes that a job's bounds name are options of that job alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coadapt.configure import Curve
from coadapt.model.snapshot import JobView, Phase, Snapshot
from coadapt.policies._base import Curves
from coadapt.policies._requested import gpus_needed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]

#: Speed-up of a job that is not known otherwise: GPUs to this power.
USUAL = 0.7
#: Up to so many nodes every number of them is an option.
_EVERY_NODE = 16


@dataclass(frozen=True, slots=True)
class Offers:
    """All a decision weighs. Work and goodput in the jobs' own unit (examples, or seconds for a rigid job)."""

    jobs: Sequence[JobView]
    curves: Sequence[Curve]
    types: tuple[str, ...]
    #: GPUs that may be given away, by type.
    capacity: tuple[int, ...]
    #: Of each option: index of its type, GPUs, nodes it takes when packed.
    kind: Ints
    size: Ints
    nodes: Ints
    #: goodput[j, o]; 0 where job j cannot have option o.
    goodput: Floats
    #: The same for all it may ever have, as far as can be seen from here.
    expected: Floats
    #: Goodput of the least a job can run on.
    least: Floats
    #: The option each job has now; 0: none, -1: something that is no option.
    current: Ints
    #: Seconds of training on its least, to its end: median, and at ``LEVELS`` of the distribution.
    left_s: Floats
    left_levels_s: Floats
    #: True where nothing was measured yet, with this job or with one like it.
    unknown: npt.NDArray[np.bool_]

    def after_s(self, cost_s: Floats) -> Floats:
        """Seconds to the end with each option, what the change costs included; infinite where it cannot run."""
        with np.errstate(divide="ignore", invalid="ignore"):
            time_s = self.left_s[:, None] * self.least[:, None] / self.goodput
        changes = np.arange(len(self.size)) != self.current[:, None]
        return np.where(self.goodput > 0, time_s + changes * cost_s[:, None], np.inf)


#: Levels of the remaining work that are looked at.
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


def offers(snapshot: Snapshot, curves: Curves, jobs: Sequence[JobView], *, growth: float) -> Offers:
    """What ``jobs`` could be given out of all that others do not hold; at most ``growth`` times what was measured."""
    types, largest, capacity = _types(snapshot, jobs)
    sizes = [sorted(_sizes(largest[t], capacity[t]) | _own_sizes(jobs, t)) for t in range(len(types))]
    kind = np.array([0, *(t for t, some in enumerate(sizes) for _ in some)])
    size = np.array([0, *(s for some in sizes for s in some)])
    nodes = -(-size // np.maximum(np.array(largest)[kind], 1))
    regular = np.isin(size, [s for t in range(len(types)) for s in _sizes(largest[t], capacity[t])])
    mine = [curves[job.id] for job in jobs]
    goodput, expected = np.zeros((2, len(jobs), len(size)))
    current = np.zeros(len(jobs), dtype=np.int_)
    for row, (job, curve) in enumerate(zip(jobs, mine, strict=True)):
        for t, gpu_type in enumerate(types):
            if not job.spec.gpu_types or gpu_type in job.spec.gpu_types:
                here = np.flatnonzero((kind == t) & (size > 0))
                goodput[row, here], expected[row, here] = _goodput(
                    job, curve, gpu_type, size[here], nodes[here], regular[here], growth
                )
        current[row] = _current(job, types, kind, size)
    least, left, levels = _left(snapshot.now, jobs, mine, goodput, current)
    unknown = np.array([not curve.fitted for curve in mine], dtype=np.bool_)
    return Offers(
        jobs,
        mine,
        types,
        capacity,
        kind,
        size,
        nodes,
        goodput,
        expected,
        least,
        current,
        left,
        levels,
        unknown,
    )


def _types(
    snapshot: Snapshot, jobs: Sequence[JobView]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """GPU types of the cluster, GPUs of their largest node, and GPUs free or held by ``jobs``."""
    largest: dict[str, int] = {}
    capacity: dict[str, int] = {}
    for view in snapshot.nodes.values():
        kind = view.node.gpu_type
        largest[kind] = max(largest.get(kind, 0), view.node.gpus)
        capacity[kind] = capacity.get(kind, 0) + view.node.gpus - view.promised
    for job in jobs:
        for slot in job.target.slots:
            if slot.node in snapshot.nodes:
                capacity[slot.gpu_type] += slot.replicas * job.spec.role(slot.role).demand.gpus
    types = tuple(largest)
    return types, tuple(largest[t] for t in types), tuple(capacity[t] for t in types)


def _sizes(node: int, capacity: int) -> set[int]:
    if not node:
        return set()
    sizes = {1 << i for i in range(node.bit_length()) if 1 << i < node}
    count = 1
    while count * node <= capacity:
        sizes.add(count * node)
        count = count + 1 if count < _EVERY_NODE else count + count // 4
    return {size for size in sizes if size <= capacity}


def _own_sizes(jobs: Sequence[JobView], t: int) -> set[int]:
    """Sizes that jobs have to have: rigid ones, and the least of others."""
    sizes = set()
    for job in jobs:
        spec = job.spec
        sizes.add(gpus_needed(spec) if _rigid(job) else spec.worker.min * spec.gpus_per_replica)
    return {size for size in sizes if size > 0}


def _rigid(job: JobView) -> bool:
    return not job.spec.elastic or job.spec.batch is None or len(job.spec.roles) > 1


def _goodput(
    job: JobView,
    curve: Curve,
    gpu_type: str,
    size: Ints,
    nodes: Ints,
    regular: npt.NDArray[np.bool_],
    growth: float,
) -> tuple[Floats, Floats]:
    """Goodput of what the job may have now, and of all it may ever have."""
    spec = job.spec
    if _rigid(job):
        asked = size == gpus_needed(spec)
        on = np.minimum(nodes, spec.requested)
        only = np.where(asked, curve.goodput(on, np.full(len(size), spec.requested), gpu_type), 0.0)
        return only, only
    per, role = max(spec.gpus_per_replica, 1), spec.worker
    most = min(role.max, max(int(growth * curve.max_profiled_replicas), role.min))
    replicas = size // per
    allowed = (size % per == 0) & (replicas >= role.min) & (replicas <= most)
    allowed &= regular | (replicas == role.min)
    # the whole row, although some of it is not allowed: a question that all jobs are asked is answered for all at once
    expected = np.where(
        (size % per == 0) & (replicas <= role.max), curve.goodput(nodes, replicas, gpu_type), 0.0
    )
    return np.where(allowed, expected, 0.0), expected


def _current(job: JobView, types: tuple[str, ...], kind: Ints, size: Ints) -> int:
    if not job.target:
        return 0
    if job.target.gpu_type not in types:
        return -1
    same = np.flatnonzero((kind == types.index(job.target.gpu_type)) & (size == job.target_gpus))
    return int(same[0]) if same.size else -1


def _left(
    now: float, jobs: Sequence[JobView], curves: Sequence[Curve], goodput: Floats, current: Ints
) -> tuple[Floats, Floats, Floats]:
    """Least goodput, and seconds on it to the end: work since the last report counts as done at the speed expected."""
    runs = goodput > 0
    least = np.where(runs, goodput, np.inf).min(axis=1)
    least = np.where(np.isfinite(least), least, 1.0)
    # a rigid job's one size is taken for a point on the usual curve: 8 GPUs are worth more than 1, less than 8
    least /= np.array([gpus_needed(job.spec) ** USUAL if _rigid(job) else 1.0 for job in jobs])
    levels = np.empty((len(jobs), len(LEVELS)))
    for row, (job, curve) in enumerate(zip(jobs, curves, strict=True)):
        left = curve.remaining()
        work = left.at_levels(LEVELS)
        if job.phase is Phase.RUNNING and job.measured_at is not None and current[row] > 0:
            ran_s = now - max(job.measured_at, job.changed_at or 0.0)
            work = np.maximum(work - goodput[row, current[row]] * max(ran_s, 0.0), 0.002 * work)
        # the first measurement is worth more than any guess: unknown jobs come first, and need little for it
        levels[row] = work / least[row] if curve.fitted else 0.0
    return least, levels[:, LEVELS.index(0.5)], levels
