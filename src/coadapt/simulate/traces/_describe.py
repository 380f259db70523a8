"""A workload in a few numbers, and the cluster it would have needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Any

from coadapt.simulate.traces._base import Submission, Workload

#: GPUs of a node where the trace does not tell: the most common machine.
_PER_NODE = 8


def describe(workload: Workload) -> dict[str, Any]:
    """Jobs, span, GPU-hours, sizes ... of a workload, as plain data."""
    specs = [submission.spec for submission in workload.jobs]
    known = [(spec, spec.duration_s) for spec in specs if spec.duration_s is not None]
    durations = [duration for _, duration in known]
    first = workload.jobs[0].at if workload.jobs else 0.0
    last = workload.jobs[-1].at if workload.jobs else 0.0
    sizes = Counter(spec.requested_gpus for spec in specs)
    profiles = Counter(spec.profile for spec in specs if spec.profile)
    types = Counter("|".join(spec.gpu_types) for spec in specs if spec.gpu_types)
    peaks = peak_gpus(workload)
    return {
        "source": workload.source,
        "jobs": len(specs),
        "first_submit_s": first,
        "span_s": last - first,
        "gpu_hours": sum(spec.requested_gpus * duration for spec, duration in known) / 3600,
        "jobs_with_duration": len(known),
        "median_duration_s": median(durations) if durations else None,
        "longest_duration_s": max(durations, default=None),
        "sizes": dict(sorted(sizes.items())),
        "gpu_types": dict(sorted(types.items())),
        "profiles": dict(sorted(profiles.items())),
        "users": len({spec.user for spec in specs if spec.user}),
        "teams": len({spec.team for spec in specs if spec.team}),
        "recorded": workload.recorded,
        "skipped": len(workload.skipped),
        "left_out": dict(workload.left_out),
        "started_at": workload.started_at,
        "cluster_hint": workload.cluster_hint,
        "peak_gpus": peaks,
        "peak_cluster": _shorthand(peaks),
    }


def peak_gpus(workload: Workload) -> dict[str, int]:
    """The most GPUs in use at once by type ("": no job names one), where the trace tells how long jobs ran.

    At the recorded times, else as if every job had started when it was submitted. Jobs that take any type count
    with the type that is asked for most; one that takes several, with the first of them.
    """
    asked = Counter(job.spec.gpu_types[0] for job in workload.jobs if job.spec.gpu_types)
    usual = asked.most_common(1)[0][0] if asked else ""
    by_type: dict[str, list[Submission]] = {}
    for job in workload.jobs:
        by_type.setdefault(job.spec.gpu_types[0] if job.spec.gpu_types else usual, []).append(job)
    peaks = {name: _peak(jobs) for name, jobs in sorted(by_type.items())}
    return {name: peak for name, peak in peaks.items() if peak}


def _peak(jobs: Iterable[Submission]) -> int:
    changes: list[tuple[float, int]] = []
    for job in jobs:
        span = _span(job)
        if span is not None:
            gpus = job.spec.requested_gpus
            changes += [(span[0], gpus), (span[1], -gpus)]
    # what ends at a moment is free for what starts then
    changes.sort()
    used = most = 0
    for _, change in changes:
        used += change
        most = max(most, used)
    return most


def _span(job: Submission) -> tuple[float, float] | None:
    recorded, duration_s = job.spec.recorded, job.spec.duration_s
    if recorded is not None and recorded.start_s is not None and recorded.end_s is not None:
        return recorded.start_s, recorded.end_s
    return None if duration_s is None else (job.at, job.at + duration_s)


def _shorthand(peaks: dict[str, int]) -> str | None:
    """Nodes for the peak of each type."""
    groups = []
    for gpu_type, peak in peaks.items():
        per_node = min(_PER_NODE, 1 << (peak - 1).bit_length())
        groups.append(f"{math.ceil(peak / per_node)}x{per_node}" + (f":{gpu_type}" if gpu_type else ""))
    return ",".join(groups) or None
