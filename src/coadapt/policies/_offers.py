"""What each job could be given, and how fast it would get on with it: rows are jobs, columns are options (``_sizes``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coadapt.configure import Curve
from coadapt.model.snapshot import JobView, Phase, Snapshot
from coadapt.policies._base import Curves
from coadapt.policies._requested import gpus_needed
from coadapt.policies._sizes import gpus_by_type, is_rigid, most_gpus, own_sizes, usual_sizes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]

#: Speed-up of a job that is not known otherwise: GPUs to this power.
USUAL = 0.7


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
    mine = [curves[job.id] for job in jobs]
    goodput, expected = np.zeros((2, len(jobs), len(size)))
    current = np.zeros(len(jobs), dtype=np.int_)
    for row, (job, curve) in enumerate(zip(jobs, mine, strict=True)):
        for t, gpu_type in enumerate(types):
            if not job.spec.gpu_types or gpu_type in job.spec.gpu_types:
                here = np.flatnonzero((kind == t) & (size > 0))
                goodput[row, here], expected[row, here] = _goodput(
                    job, curve, gpu_type, size[here], nodes[here], regular[here], growth, largest[t]
                )
                if job.id in most:
                    too_many = here[size[here] - _beside(job) > most[job.id].get(gpu_type, 0)]
                    goodput[row, too_many] = expected[row, too_many] = 0.0
        current[row] = _current(job, types, kind, size)
        if is_rigid(job) and not curve.fitted:
            seen = _seen(job, snapshot.now)
            if seen is not None:
                goodput[row], expected[row] = seen * (goodput[row] > 0), seen * (expected[row] > 0)
    unknown = np.array(
        [not curve.fitted and not curve.max_profiled_replicas for curve in mine], dtype=np.bool_
    )
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


def _goodput(
    job: JobView,
    curve: Curve,
    gpu_type: str,
    size: Ints,
    nodes: Ints,
    regular: npt.NDArray[np.bool_],
    growth: float,
    largest: int,
) -> tuple[Floats, Floats]:
    """Goodput of what the job may have now, and of all it may ever have."""
    spec = job.spec
    if is_rigid(job):
        asked = size == gpus_needed(spec)
        on = np.minimum(nodes, spec.requested)
        only = np.where(asked, curve.goodput(on, np.full(len(size), spec.requested), gpu_type), 0.0)
        return only, only
    per, role = spec.gpus_per_replica, spec.worker
    most = min(role.max, max(int(growth * curve.max_profiled_replicas), role.min))
    replicas = size // per
    if per > 1 and largest >= per:
        regular = regular if largest % per == 0 else replicas % (largest // per) == 0
        nodes = -(-replicas // (largest // per))
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


def _beside(job: JobView) -> int:
    """GPUs of the roles beside the workers."""
    return gpus_needed(job.spec) - job.spec.requested_gpus if len(job.spec.roles) > 1 else 0


def work_done(job: JobView, now: float) -> float:
    """As reported; of a job known by its duration, which reports nothing, the time it has had what it asked for."""
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
    levels = np.empty((len(jobs), len(LEVELS)))
    for row, (job, curve) in enumerate(zip(jobs, curves, strict=True)):
        left = curve.remaining()
        work = left.at_levels(LEVELS)
        if job.phase is Phase.RUNNING and job.measured_at is not None and current[row] > 0:
            ran_s = now - max(job.measured_at, job.changed_at or 0.0)
            work = np.maximum(work - goodput[row, current[row]] * max(ran_s, 0.0), 0.002 * work)
        elif job.work is None and job.spec.duration_s is not None:
            work = np.maximum(work - work_done(job, now), 0.002 * work)
        # the first measurement is worth more than any guess: unknown jobs come first, and need little for it
        levels[row] = 0.0 if unknown[row] else work / least[row]
    return least, levels[:, LEVELS.index(0.5)], levels
