"""The run that a trace recorded: its summary, and a replay that checks the cluster against it.

The summary puts the recorded run beside those of the policies; nothing is simulated for it. Waits are seconds without
GPUs between submission and end, as in every summary: before the recorded start, and, where a job's duration is shorter
than start to end, between its attempts.

The replay checks whether the given cluster can hold the recorded run. Jobs start when they did, on this cluster, at no
cost; waits and completion times are then compared with the recorded ones, job by job. The starts are given, so small
errors say nothing about any policy: they say that trace, cluster size and accounting agree. Errors come from GPUs that
are not free when they were (a smaller cluster, nodes that were added) and from jobs whose recorded time is not what
they take here (mapped to profiles).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from coadapt.errors import InputError
from coadapt.model import Cluster, Fact, JobSpec, format_cluster
from coadapt.report import History
from coadapt.simulation.case import Case, prepare, run_case
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Workload
from coadapt.simulation.truth._base import Truth
from coadapt.units import format_duration


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
    """Returns the summary of the recorded run; None if the trace has no recorded starts."""
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


class RecordedCheck(Fact, frozen=True):
    """Absolute errors of the replay, in seconds, over the jobs whose start (and end) was recorded."""

    #: The cluster that was replayed.
    cluster: str
    jobs: int
    wait_error_p50_s: float
    wait_error_p90_s: float
    jct_error_p50_s: float | None
    jct_error_p90_s: float | None
    #: Error of the average JCT, as a share of the recorded one.
    avg_jct_error: float | None
    #: Jobs that could not start when they did.
    late: int
    #: True if jobs run as profiles, not for the time that was recorded.
    mapped: bool = False

    @property
    def verdict(self) -> str:
        """Describes in words how many jobs could not start when recorded."""
        if not self.late:
            return f"all {self.jobs:,} jobs could start at their recorded times: {self.cluster} is large enough for the recorded run"
        jobs = "1 job" if self.late == 1 else f"{self.late:,} jobs"
        why = f"the given cluster ({self.cluster}) is smaller than the real one was"
        if self.mapped:
            why += ", or mapped profiles hold their GPUs longer than the recorded jobs did"
        return f"{jobs} of {self.jobs:,} could not start at their recorded times: {why}"

    @property
    def sentence(self) -> str:
        """The result of the replay as a paragraph for the report."""
        jct = ""
        if self.avg_jct_error is not None:
            jct = f", that of the average completion time {self.avg_jct_error:+.1%}"
        return (
            f"The trace has recorded start times. Replayed on {self.cluster} at these times, without start-up costs, "
            f"{self.verdict}; the error of waiting times is {format_duration(self.wait_error_p90_s)} at the 90th percentile{jct}. "
            "This replay validates the trace, not a policy. Compare the waits of fifo with the recorded ones to see how "
            "closely the real scheduler followed first in, first out."
        )


def check_recorded(
    workload: Workload, cluster: Cluster, scenario: Scenario, truths: Mapping[str, Truth]
) -> RecordedCheck | None:
    """Replays the recorded run and returns its errors; None if the trace recorded no starts or no job fits.

    Args:
        workload: Jobs with their recorded starts and ends.
        cluster: Cluster to replay on.
        scenario: Scenario of the comparison; costs, noise and interference are set to 0 for the replay.
        truths: Ground truth by profile.
    """
    if not workload.recorded:
        return None
    ideal = replace(scenario, interval_s=None, restart_s=0.0, interference=0.0, links=False, noise=0.0)
    ideal = replace(ideal, stragglers=0.0, published=False, placement=None, skip_bad=True)
    case = Case(name="recorded", policy="recorded", cluster=cluster, scenario=ideal)
    try:
        fit, _ = prepare(case, workload, truths)
    except InputError:
        # no job fits at the size it had: there is nothing to replay
        return None
    return compare_with_recorded(run_case(case, fit, truths).history, format_cluster(cluster))


def compare_with_recorded(history: History, cluster: str) -> RecordedCheck | None:
    """The errors of a replayed history; None where no job that started has a recorded start."""
    waits, times, recorded_times = [], [], []
    for job in history.jobs.values():
        recorded = job.spec.recorded
        if recorded is None or recorded.start_s is None or job.started_at is None:
            continue
        waits.append(job.started_at - recorded.start_s)
        if recorded.end_s is not None and job.jct_s is not None:
            times.append(job.jct_s)
            recorded_times.append(recorded.end_s - job.submitted_at)
    if not waits:
        return None
    wait_errors = np.abs(np.array(waits))
    jct, truth = np.array(times), np.array(recorded_times)
    return RecordedCheck(
        cluster=cluster,
        jobs=len(waits),
        wait_error_p50_s=float(np.percentile(wait_errors, 50)),
        wait_error_p90_s=float(np.percentile(wait_errors, 90)),
        jct_error_p50_s=_percentile(np.abs(jct - truth), 50),
        jct_error_p90_s=_percentile(np.abs(jct - truth), 90),
        avg_jct_error=float(jct.mean() / truth.mean() - 1) if len(jct) and truth.mean() > 0 else None,
        late=int((np.array(waits) > 1e-6).sum()),
        mapped=any(job.spec.profile for job in history.jobs.values()),
    )
