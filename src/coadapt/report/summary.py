"""One run in numbers, and runs against each other.

Percentiles are numpy's linear ones. The interval of a ratio comes from a paired bootstrap over jobs:
jobs are drawn with replacement, the same ones for both policies, so that what makes a job long under
every policy does not widen the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.report.fairness import finish_time_fairness
from coadapt.report.history import History

#: Draws held in memory at once; 82,247 jobs x 2,000 resamples at once would be 1.3 GB.
_BLOCK = 4_000_000


class Summary(Fact, frozen=True):
    """The numbers of one run; None where a number cannot be known. No defaults: every key is always there."""

    num_jobs: int
    #: Jobs that succeeded; all others (failed, cancelled, still there) are unfinished.
    num_finished: int
    num_unfinished: int
    avg_jct_s: float | None
    p50_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None
    #: Mean of the slowest tenth of the jobs, at least one.
    slowest10_jct_s: float | None
    #: First submission to last finish.
    makespan_s: float | None
    gpu_hours: float
    #: GPU-seconds held / GPU-seconds available, over the makespan.
    utilisation: float | None
    num_restarts: int
    #: Share of the GPU time held in which jobs started, resized or stopped.
    restart_share: float | None
    #: Seconds without GPUs between submission and finish.
    avg_wait_s: float | None
    p90_wait_s: float | None
    avg_efficiency: float | None
    rho_mean: float | None
    rho_max: float | None
    #: Share of jobs with rho > 1.
    rho_unfair_share: float | None
    decisions: int
    #: CPU time of a decision, on average.
    decision_ms: float | None
    cpu_s: float | None
    num_deadlines: int
    #: Jobs that did not succeed by their deadline, those that never finished among them.
    num_deadlines_missed: int


def summarise(
    history: History,
    *,
    rho: Mapping[str, float] | None = None,
    decision_cpu_s: float | None = None,
    cpu_s: float | None = None,
) -> Summary:
    """The numbers of ``history``; ``rho`` from ``finish_time_fairness``, by default that of rigid jobs."""
    history.settle()
    jobs = history.jobs.values()
    finished = [job for job in jobs if job.jct_s is not None]
    jct = np.array([job.jct_s for job in finished], dtype=np.float64)
    waits = np.array([job.waited_s for job in finished])
    fairness = np.array(list((finish_time_fairness(history) if rho is None else rho).values()))
    held = sum(job.held_gpu_s for job in jobs)
    rated = sum(job.rated_gpu_s for job in jobs)
    slowest = np.sort(jct)[::-1][: max(1, round(len(jct) / 10))]
    makespan = None
    if history.first_submitted_at is not None and history.last_ended_at is not None:
        makespan = history.last_ended_at - history.first_submitted_at
    return Summary(
        num_jobs=len(history.jobs),
        num_finished=len(finished),
        num_unfinished=len(history.jobs) - len(finished),
        avg_jct_s=_mean(jct),
        p50_jct_s=_percentile(jct, 50),
        p90_jct_s=_percentile(jct, 90),
        p99_jct_s=_percentile(jct, 99),
        slowest10_jct_s=_mean(slowest),
        makespan_s=makespan,
        gpu_hours=held / 3600,
        utilisation=_ratio(history.span_held_gpu_s, history.span_available_gpu_s),
        num_restarts=sum(job.restarts for job in jobs),
        restart_share=_ratio(sum(job.changing_gpu_s for job in jobs), held),
        avg_wait_s=_mean(waits),
        p90_wait_s=_percentile(waits, 90),
        avg_efficiency=_ratio(sum(job.useful_gpu_s for job in jobs), rated),
        rho_mean=_mean(fairness),
        rho_max=float(fairness.max()) if len(fairness) else None,
        rho_unfair_share=_mean((fairness > 1 + 1e-9).astype(np.float64)),
        decisions=history.decisions,
        decision_ms=None if decision_cpu_s is None else _ratio(decision_cpu_s * 1000, history.decisions),
        cpu_s=cpu_s,
        num_deadlines=sum(job.spec.deadline_s is not None for job in jobs),
        num_deadlines_missed=sum(job.missed_deadline for job in jobs),
    )


def completion_times(history: History) -> dict[str, float]:
    """JCT of every job that succeeded, in seconds: what ``compare`` takes."""
    return {job.id: job.jct_s for job in history.jobs.values() if job.jct_s is not None}


class Ratio(Fact, frozen=True):
    """Average JCT over that of the reference, with its 95% interval; below 1 is faster."""

    ratio: float
    low: float
    high: float
    #: Jobs that finished under both; only these are compared.
    jobs: int


def compare(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    reference: str,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Ratio]:
    """Each policy's average JCT relative to ``reference``'s.

    ``runs`` gives for each policy the JCT by job of every seed it was run with; a job's JCT is
    averaged over the seeds in which it finished before jobs are drawn.
    """
    if reference not in runs:
        raise InputError(f"no run called {reference!r} to compare with; there are {', '.join(sorted(runs))}")
    means = {name: _per_job(seeds) for name, seeds in runs.items()}
    base = means[reference]
    ratios: dict[str, Ratio] = {}
    for name, own in means.items():
        common = sorted(own.keys() & base.keys())
        if common:
            pairs = np.array([[own[job], base[job]] for job in common])
            ratios[name] = _bootstrap(pairs, resamples, np.random.default_rng(seed))
    return ratios


def _per_job(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    collected: dict[str, list[float]] = {}
    for one in seeds:
        for job, jct in one.items():
            collected.setdefault(job, []).append(jct)
    return {job: sum(values) / len(values) for job, values in collected.items()}


def _bootstrap(pairs: npt.NDArray[np.float64], resamples: int, rng: np.random.Generator) -> Ratio:
    count = len(pairs)
    own, base = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    if np.array_equal(own, base):  # the reference itself
        return Ratio(ratio=1.0, low=1.0, high=1.0, jobs=count)
    drawn = np.empty(resamples)
    rows = max(1, _BLOCK // count)
    for first in range(0, resamples, rows):
        picks = rng.integers(count, size=(min(rows, resamples - first), count), dtype=np.int32)
        drawn[first : first + rows] = own[picks].sum(axis=1) / base[picks].sum(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Ratio(ratio=float(own.sum() / base.sum()), low=float(low), high=float(high), jobs=count)


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: npt.NDArray[np.float64], share: float) -> float | None:
    return float(np.percentile(values, share)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
