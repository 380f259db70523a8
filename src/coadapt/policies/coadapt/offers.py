"""The options of each job and their goodput: rows are jobs, columns are sizes of one GPU type.

An option is a number of GPUs of one type: 1, 2, 4 ... up to a node, then whole nodes, which pack without fragments;
beyond ``_EVERY_NODE`` nodes in steps of a quarter. Sizes that the bounds of a job name are options of that job alone,
and so are whole nodes as far as replicas of several GPUs fill them. A size that would not fit the empty cluster is no
option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.configure import Curve
from coadapt.configure.curve import unmeasured
from coadapt.configure.goodput_table import goodput_rows
from coadapt.model import Node
from coadapt.model.snapshot import JobView, Phase, Snapshot
from coadapt.policies._base import Curves, gpus_needed
from coadapt.prediction.remaining.work import at_levels

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]

#: Speed-up of a job that is not known otherwise: GPUs to this power.
USUAL = 0.7


@dataclass(frozen=True, slots=True)
class Offers:
    """The input of one decision. Work and goodput are in the jobs' own unit (examples, or seconds for a rigid job)."""

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
    #: Jobs (rows) whose measurements gave no finite figures; they are taken for unmeasured.
    dropped: tuple[int, ...] = ()

    def after_s(self, cost_s: Floats) -> Floats:
        """Seconds to the end with each option, what the change costs included; infinite where it cannot run."""
        with np.errstate(divide="ignore", invalid="ignore"):
            time_s = self.left_s[:, None] * self.least[:, None] / self.goodput
        changes = np.arange(len(self.size)) != self.current[:, None]
        return np.where(self.goodput > 0, time_s + changes * cost_s[:, None], np.inf)


#: Levels of the remaining work that are looked at.
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


def offers(snapshot: Snapshot, curves: Curves, jobs: Sequence[JobView], *, growth: float) -> Offers:
    """Builds the options of one decision, out of all GPUs that jobs outside ``jobs`` do not hold.

    Args:
        snapshot: the cluster at this moment.
        curves: scaling curve of each job, by job id.
        jobs: the jobs that this decision may change.
        growth: a job is offered at most so many times the replicas it was measured with.
    """
    mine = [curves[job.id] for job in jobs]
    found = _of_curves(snapshot, mine, jobs, growth)
    dropped = _not_finite(found)
    if not dropped:
        return found
    for row in dropped:
        mine[row] = unmeasured(jobs[row].spec)
    return replace(_of_curves(snapshot, mine, jobs, growth), dropped=dropped)


def _not_finite(found: Offers) -> tuple[int, ...]:
    """Rows of jobs whose curve or remaining work is not a number, or overflows; an infinite remaining time is none."""
    with np.errstate(all="ignore"):
        ratio = np.maximum(found.goodput, found.expected).max(axis=1, initial=0.0) / found.least
        sound = np.isfinite(ratio) & np.isfinite(found.least) & (found.least > 0)
        for figures in (found.goodput, found.expected):
            sound &= np.isfinite(figures).all(axis=1) & (figures >= 0).all(axis=1)
        sound &= ~np.isnan(found.left_levels_s).any(axis=1)
    return tuple(np.flatnonzero(~sound).tolist())


def _of_curves(snapshot: Snapshot, mine: list[Curve], jobs: Sequence[JobView], growth: float) -> Offers:
    types, largest, capacity, there = gpus_by_type(snapshot, jobs)
    usual = [usual_sizes(*each) for each in zip(largest, capacity, strict=True)]
    sizes = [
        sorted(some | own_sizes(jobs, *each)) for some, *each in zip(usual, largest, capacity, strict=True)
    ]
    kind = np.array([0, *(t for t, some in enumerate(sizes) for _ in some)])
    size = np.array([0, *(s for some in sizes for s in some)])
    nodes = -(-size // np.maximum(np.array(largest)[kind], 1))
    regular = np.array([s in usual[t] for t, s in zip(kind.tolist(), size.tolist(), strict=True)])
    most = most_gpus(snapshot, jobs)
    profiled = np.array([curve.max_profiled_replicas for curve in mine], dtype=np.int_)
    goodput, expected = np.zeros((2, len(jobs), len(size)))
    for t, gpu_type in enumerate(types):
        here = np.flatnonzero((kind == t) & (size > 0))
        places = _Places(gpu_type, size[here], nodes[here], regular[here], largest[t])
        for rows in _alike(jobs, gpu_type):
            at = np.ix_(rows, here)
            some, curves_of = [jobs[row] for row in rows], [mine[row] for row in rows]
            if is_rigid(some[0]):
                goodput[at] = expected[at] = _rigid(some, curves_of, places)
            else:
                goodput[at], expected[at] = _elastic(
                    some, curves_of, places, (growth * profiled[rows]).astype(np.int_)
                )
            for row in rows.tolist() if most else ():
                if jobs[row].id in most:
                    too_many = here[size[here] - _beside(jobs[row]) > most[jobs[row].id].get(gpu_type, 0)]
                    goodput[row, too_many] = expected[row, too_many] = 0.0
    known = np.array([curve.fitted for curve in mine], dtype=np.bool_)
    for row in np.flatnonzero(~known).tolist():
        seen = _seen(jobs[row], snapshot.now) if is_rigid(jobs[row]) else None
        if seen is not None:
            goodput[row], expected[row] = seen * (goodput[row] > 0), seen * (expected[row] > 0)
    option = {
        (types[t], s): o for o, (t, s) in enumerate(zip(kind.tolist(), size.tolist(), strict=True)) if s
    }
    current = np.array(
        [option.get((job.target.gpu_type, job.target_gpus), -1) if job.target else 0 for job in jobs],
        dtype=np.int_,
    )
    unknown = ~known & (profiled == 0)
    least, left, levels = _left(snapshot.now, jobs, mine, goodput, current, unknown)
    goodput[:, size > np.array(capacity)[kind]] = 0.0  # others have it, who stay
    expected[:, size > np.array(there)[kind]] = 0.0
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


class _Places(NamedTuple):
    """The options of one GPU type."""

    gpu_type: str
    size: Ints
    nodes: Ints
    #: False for sizes that single jobs ask for.
    regular: npt.NDArray[np.bool_]
    #: GPUs of the largest node.
    largest: int


def _alike(jobs: Sequence[JobView], gpu_type: str) -> list[Ints]:
    """Jobs that may have a GPU type, in groups that one question can be put to."""
    groups: dict[int, list[int]] = {}
    for row, job in enumerate(jobs):
        spec = job.spec
        if not spec.gpu_types or gpu_type in spec.gpu_types:
            groups.setdefault(0 if is_rigid(job) else spec.gpus_per_replica, []).append(row)
    return [np.array(rows) for rows in groups.values()]


def _rigid(jobs: Sequence[JobView], curves: Sequence[Curve], places: _Places) -> Floats:
    """Goodput of what jobs may have that have one size only."""
    found = np.zeros((len(jobs), len(places.size)))
    for row, (job, curve) in enumerate(zip(jobs, curves, strict=True)):
        asked = np.flatnonzero(places.size == gpus_needed(job.spec))
        if asked.size:
            replicas = np.full(len(asked), job.spec.requested)
            found[row, asked] = curve.goodput(
                np.minimum(places.nodes[asked], replicas), replicas, places.gpu_type
            )
    return found


def _elastic(
    jobs: Sequence[JobView], curves: Sequence[Curve], places: _Places, most: Ints
) -> tuple[Floats, Floats]:
    """Goodput of what jobs may have now, with at most so many replicas, and of all they may ever have."""
    gpu_type, size, nodes, regular, largest = places
    per = jobs[0].spec.gpus_per_replica
    replicas = size // per
    if per > 1 and largest >= per:
        regular = regular if largest % per == 0 else replicas % (largest // per) == 0
        nodes = -(-replicas // (largest // per))
    low, high = np.array([(job.spec.worker.min, job.spec.worker.max) for job in jobs]).T[:, :, None]
    most = np.minimum(high, np.maximum(most[:, None], low))
    # the whole row, although some of it is not allowed: what all jobs are asked is answered for all at once
    expected = goodput_rows(curves, nodes, replicas, gpu_type)
    expected = np.where((size % per == 0) & (replicas <= high), expected, 0.0)
    allowed = (replicas >= low) & (replicas <= most) & (regular | (replicas == low))
    return np.where(allowed, expected, 0.0), expected


def _beside(job: JobView) -> int:
    """GPUs of the roles beside the workers."""
    return gpus_needed(job.spec) - job.spec.requested_gpus if len(job.spec.roles) > 1 else 0


def work_done(job: JobView, now: float) -> float:
    """Returns the reported work; for a job with a declared duration and no reports, the time it has held its requested
    size.
    """
    if job.work is not None or job.spec.batch is not None:
        return job.work or 0.0
    return job.attained_gpu_s(now) / gpus_needed(job.spec)


def _seen(job: JobView, now: float) -> float | None:
    """Work per second so far, of a job whose one size tells no curve; None before its first report."""
    if not job.work or job.measured_at is None:
        return None
    since = job.target_gpus * (now - job.measured_at) if job.phase is Phase.RUNNING else 0.0
    held_s = (job.attained_gpu_s(now) - since) / gpus_needed(job.spec)
    return job.work / held_s if held_s > 0 else None


def _left(
    now: float,
    jobs: Sequence[JobView],
    curves: Sequence[Curve],
    goodput: Floats,
    current: Ints,
    unknown: npt.NDArray[np.bool_],
) -> tuple[Floats, Floats, Floats]:
    """Least goodput, and seconds on it to the end: work since the last report counts as done at the speed expected."""
    runs = goodput > 0
    least = np.where(runs, goodput, np.inf).min(axis=1)
    least = np.where(np.isfinite(least), least, 1.0)
    # a rigid job's one size is taken for a point on the usual curve: 8 GPUs are worth more than 1, less than 8
    least /= np.array([gpus_needed(job.spec) ** USUAL if is_rigid(job) else 1.0 for job in jobs])
    done = np.zeros(len(jobs))
    for row, job in enumerate(jobs):
        if job.phase is Phase.RUNNING and job.measured_at is not None and current[row] > 0:
            ran_s = now - max(job.measured_at, job.changed_at or 0.0)
            done[row] = goodput[row, current[row]] * max(ran_s, 0.0)
        elif job.work is None and job.spec.duration_s is not None:
            done[row] = work_done(job, now)
    work = at_levels([curve.remaining() for curve in curves], LEVELS)
    work = np.maximum(work - done[:, None], 0.002 * work)
    # the first measurement is worth more than any guess: unknown jobs come first, and need little for it
    with np.errstate(over="ignore"):  # more than any number of seconds: its end is not known
        levels = np.where(unknown[:, None], 0.0, work / least[:, None])
    return least, levels[:, LEVELS.index(0.5)], levels


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
        # every other role must fit the empty cluster as well
        others = all(
            sum(count * node.takes(other.demand, other.min) for node, count in nodes.values()) >= other.min
            for other in job.spec.roles[1:]
        )
        most[job.id] = known[key] if others else {}
    return most


def is_rigid(job: JobView) -> bool:
    """Whether the job has one size: that its user asked for."""
    return not job.spec.elastic or job.spec.batch is None or len(job.spec.roles) > 1
