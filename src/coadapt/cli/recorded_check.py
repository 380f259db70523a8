"""Does the cluster given hold the run that a trace recorded? A replay of the recorded starts.

Jobs start when they did, on this cluster, at no cost; waits and completion times are then compared with the
recorded ones, job by job. The starts are given, so small errors say nothing about any policy: they say that trace,
cluster size and accounting agree. Errors come from GPUs that are not free when they were (a smaller cluster, nodes
that were added) and from jobs whose recorded time is not what they take here (mapped to profiles).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coadapt.cli.compose import Case, prepare, run_case
from coadapt.cli.scenario import Scenario
from coadapt.errors import InputError
from coadapt.model import Cluster, Fact, format_cluster
from coadapt.report import History
from coadapt.simulate.traces import Workload
from coadapt.simulate.truth import Truth
from coadapt.units import format_duration


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
        """What ``late`` means."""
        if not self.late:
            return f"all {self.jobs:,} jobs could start when they did: {self.cluster} holds the recorded run"
        jobs = "1 job" if self.late == 1 else f"{self.late:,} jobs"
        why = f"the cluster given ({self.cluster}) is smaller than the real one was then"
        if self.mapped:
            why += ", or jobs that stand for others hold their GPUs longer than those did"
        return f"{jobs} of {self.jobs:,} could not start when recorded: {why}"

    @property
    def sentence(self) -> str:
        """For the report."""
        jct = ""
        if self.avg_jct_error is not None:
            jct = f", the average completion time by {self.avg_jct_error:+.1%}"
        return (
            f"The trace recorded when jobs started. Replayed on {self.cluster}, with these starts and no cost of starting, "
            f"{self.verdict}; waits are off by {format_duration(self.wait_error_p90_s)} at the 90th percentile{jct}. "
            "This checks trace, cluster size and accounting, no policy: how far the waits of fifo are from the recorded "
            "ones tells how far the real scheduler was from first come, first served."
        )


def check_recorded(
    workload: Workload, cluster: Cluster, scenario: Scenario, truths: Mapping[str, Truth]
) -> RecordedCheck | None:
    """Replays the recorded run; None where the trace recorded none."""
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


def _percentile(values: npt.NDArray[np.float64], rank: float) -> float | None:
    return float(np.percentile(values, rank)) if len(values) else None
