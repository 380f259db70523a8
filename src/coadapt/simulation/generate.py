"""Workloads with the habits of real ones, drawn from a seed.

As in the workloads published with Pollux (OSDI 2021), which were sampled from Microsoft's Philly trace:
arrivals come in waves over the hours; most jobs are small and a few are very long (classes by GPU time
below 1, 10 and 100 GPU-hours, and above); a user has tuned the size: workers and the batch size best
for them, chosen among those where a worker still yields 50 to 80% of a single one's speed. Added here:
users, of whom few submit most (Zipf).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coadapt.errors import InputError
from coadapt.model import JobSpec
from coadapt.simulation.traces._base import Submission, Workload
from coadapt.simulation.truth._base import Truth, solo_time_s
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for

#: Arrivals per hour of an 8-hour day, mean of Pollux' workloads; later hours repeat it.
ARRIVALS = (18, 18, 8, 21, 24, 35, 19, 17)
#: Share of jobs by class of GPU time, mean of Pollux' workloads; the last class are the very long jobs.
CLASS_SHARES = (0.79, 0.147, 0.046, 0.017)
#: Upper ends of the classes, in GPU-seconds.
CLASS_ENDS_S = (3600.0, 36_000.0, 360_000.0)
#: The class Pollux gives a task; other tasks are classed by their GPU time.
CLASSES = {"cifar10": 0, "ncf": 0, "deepspeech2": 1, "bert": 1, "yolov3": 2, "imagenet": 3}
WORKERS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
#: Yield of a worker, relative to a single one, that a careful user accepts.
YIELD = (0.5, 0.8)
LONGEST_S = 12 * 3600.0
#: Limits of what is asked for: ten years, and as many jobs as the largest public traces.
MOST_JOBS, MOST_HOURS, MOST_LOAD = 1_000_000, 87_600, 1000


def generate(
    seed: int,
    jobs: int = 160,
    hours: float = 8.0,
    *,
    long_jobs: bool = True,
    load: float = 1.0,
    profiles: Mapping[str, Truth] | None = None,
    gpu_type: str = "",
) -> list[tuple[float, JobSpec]]:
    """Draws a workload: (submission time in seconds, specification) of every job, in order of time.

    Args:
        seed: Seed of all draws.
        jobs: Number of jobs at ``load`` 1.
        hours: Time over which jobs are submitted.
        long_jobs: Include the class of the longest jobs.
        load: Multiplies the number of jobs.
        profiles: Ground truth by profile; None: the shipped profiles.
        gpu_type: GPU type for which users tune sizes; empty: the first one of each profile.
    """
    count = _count(jobs, hours, load)
    truths = dict(shipped_profiles() if profiles is None else profiles)
    classes = _by_class(truths, gpu_type, long_jobs)
    rng = np.random.default_rng(seed)
    times = arrival_times(rng, count, hours)
    shares = np.array([CLASS_SHARES[index] for index in classes])
    members = list(classes.values())
    tasks = [
        members[index][rng.integers(len(members[index]))]
        for index in rng.choice(len(members), size=count, p=shares / shares.sum())
    ]
    users = _users(rng, count)
    sizes = {task: tuned_sizes(truths[task], gpu_type) for task in dict.fromkeys(tasks)}
    workload = []
    for index, (time, task, user) in enumerate(zip(times, tasks, users, strict=True)):
        replicas, batch = sizes[task][rng.integers(len(sizes[task]))]
        spec = spec_for(
            f"{task}-{index}",
            truths[task],
            task,
            replicas=replicas,
            batch=batch,
            user=user,
            gpu_type=gpu_type,
        )
        workload.append((time, spec))
    return workload


def generate_workload(
    seed: int,
    jobs: int = 160,
    hours: float = 8.0,
    *,
    long_jobs: bool = True,
    load: float = 1.0,
    source: str = "generated",
) -> Workload:
    """A workload with the habits of real ones, of the shipped profiles: another seed, another workload.

    Args:
        jobs: How many, before ``load`` multiplies them.
        hours: Over how many hours they are submitted.
        long_jobs: With the few that run for days, or without.
        source: What the workload is called in results.
    """
    drawn = generate(seed, jobs, hours, long_jobs=long_jobs, load=load)
    return Workload(
        jobs=tuple(Submission(at=at, job=spec.name, spec=spec) for at, spec in drawn), source=source
    )


def _count(jobs: int, hours: float, load: float) -> int:
    """The number of jobs to draw. Written so that a NaN is refused."""
    if not 1 <= jobs <= MOST_JOBS:
        raise InputError(f"{jobs} jobs: the number must be from 1 to {MOST_JOBS:,}")
    if not 0 < hours <= MOST_HOURS:
        raise InputError(f"{hours:g} hours: the number must be more than 0 and at most {MOST_HOURS:,}")
    if not 0 < load <= MOST_LOAD:
        raise InputError(f"load {load:g} is invalid; it must be more than 0 and at most {MOST_LOAD:,}")
    count = round(jobs * load)
    if not 1 <= count <= MOST_JOBS:
        raise InputError(
            f"{jobs:,} jobs x load {load:g} make {count:,} jobs; the limits are 1 and {MOST_JOBS:,}"
        )
    return count


def arrival_times(rng: np.random.Generator, count: int, hours: float) -> list[float]:
    """Sorted whole seconds within ``hours``, denser where ``ARRIVALS`` is higher."""
    ends = np.append(np.arange(int(np.ceil(hours))), hours)
    rates = np.resize(ARRIVALS, len(ends) - 1)
    expected = np.concatenate([[0.0], np.cumsum(rates * np.diff(ends))])
    drawn = np.sort(rng.uniform(0.0, expected[-1], size=count))
    return [float(np.floor(hour * 3600.0)) for hour in np.interp(drawn, expected, ends)]


def tuned_sizes(truth: Truth, gpu_type: str = "") -> list[tuple[int, int]]:
    """(workers, total batch size) a careful user would ask for; never empty."""
    limits = truth.limits(gpu_type or truth.gpu_types[0])
    best: dict[int, tuple[float, int]] = {}
    for workers in WORKERS:
        batches = [
            batch for batch in _doublings(limits.initial, limits.max) if batch >= workers * limits.per_gpu_min
        ]
        if workers <= truth.max_workers and batches:
            best[workers] = min(
                (solo_time_s(truth, workers, batch, gpu_type=gpu_type), batch) for batch in batches
            )
    alone_s = best[1][0]
    yields = {workers: alone_s / time_s / workers for workers, (time_s, _) in best.items()}
    good = [w for w in best if YIELD[0] < yields[w] < YIELD[1] and best[w][0] < LONGEST_S]
    if not good:
        # Nothing in between: the largest size that still pays, at worst a single worker.
        good = [max(w for w in best if yields[w] > YIELD[0])]
    return [(workers, best[workers][1]) for workers in good]


def _by_class(truths: Mapping[str, Truth], gpu_type: str, long_jobs: bool) -> dict[int, list[str]]:
    classes: dict[int, list[str]] = {}
    for name in sorted(truths):
        index = CLASSES.get(name)
        if index is None:
            limits = truths[name].limits(gpu_type or truths[name].gpu_types[0])
            spent_s = solo_time_s(truths[name], 1, limits.initial, gpu_type=gpu_type)
            index = sum(spent_s >= end for end in CLASS_ENDS_S)
        if long_jobs or index < len(CLASS_ENDS_S):
            classes.setdefault(index, []).append(name)
    if not classes:
        raise InputError(
            "no task to draw from: every profile is a very long job, and very long jobs are excluded"
        )
    return dict(sorted(classes.items()))


def _doublings(first: int, last: int) -> list[int]:
    batches = [first]
    while batches[-1] * 2 <= last:
        batches.append(batches[-1] * 2)
    return batches if batches[-1] == last else [*batches, last]


def _users(rng: np.random.Generator, count: int) -> list[str]:
    ranks = np.arange(1, max(count // 8, 4) + 1)
    shares = 1.0 / ranks
    return [f"user{rank:02d}" for rank in rng.choice(ranks, size=count, p=shares / shares.sum())]
