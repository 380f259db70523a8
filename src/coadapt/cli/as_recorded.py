"""The run that a trace recorded, in the numbers of a summary: what policies are compared with besides each other.

Nothing is simulated here. Waits are seconds without GPUs between submission and end, as in every summary: before the
recorded start, and, where a job's duration is shorter than start to end, between its attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from coadapt.model import Fact, JobSpec
from coadapt.simulate.traces import Workload


class RecordedRun(Fact, frozen=True):
    """Keys as in ``Summary``; None where the trace does not tell. Over the jobs with a recorded start."""

    num_jobs: int
    avg_wait_s: float
    p90_wait_s: float
    num_finished: int
    avg_jct_s: float | None
    p50_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    gpu_hours: float
    #: By job, of those whose end was recorded.
    jct_s: Mapping[str, float]

    def plain(self) -> dict[str, Any]:
        """Everything but the jobs."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name != "jct_s"}


def as_recorded(workload: Workload) -> RecordedRun | None:
    """None where the trace says of no job when it started."""
    waits, jct_s, gpu_s, last_s = [], {}, 0.0, 0.0
    for job in workload.jobs:
        recorded = job.spec.recorded
        if recorded is None or recorded.start_s is None:
            continue
        waits.append(recorded.start_s - job.at + _between_attempts_s(job.spec))
        if recorded.end_s is not None:
            jct_s[job.job] = recorded.end_s - job.at
            last_s = max(last_s, recorded.end_s)
            held_s = recorded.end_s - recorded.start_s - _between_attempts_s(job.spec)
            gpu_s += held_s * job.spec.requested_gpus
    if not waits:
        return None
    return RecordedRun(
        num_jobs=len(waits),
        avg_wait_s=float(np.mean(waits)),
        p90_wait_s=float(np.percentile(waits, 90)),
        num_finished=len(jct_s),
        avg_jct_s=float(np.mean(list(jct_s.values()))) if jct_s else None,
        p50_jct_s=_percentile(jct_s.values(), 50),
        p90_jct_s=_percentile(jct_s.values(), 90),
        p99_jct_s=_percentile(jct_s.values(), 99),
        makespan_s=last_s - workload.jobs[0].at if jct_s else None,
        gpu_hours=gpu_s / 3600,
        jct_s=jct_s,
    )


def _between_attempts_s(spec: JobSpec) -> float:
    recorded = spec.recorded
    if recorded is None or recorded.start_s is None or recorded.end_s is None or spec.duration_s is None:
        return 0.0
    return max(0.0, recorded.end_s - recorded.start_s - spec.duration_s)


def _percentile(values: Iterable[float], rank: float) -> float | None:
    known = list(values)
    return float(np.percentile(known, rank)) if known else None
