"""What the page of a report shows, as plain data: sampled, rounded and small.

A page with 82,247 jobs must still open, so jobs are sampled: evenly by order of submission, and the same
jobs in every run, so that runs can be compared job by job. Distributions and series are over all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from coadapt.report.fairness import finish_time_fairness
from coadapt.report.history import History
from coadapt.report.lives import JobHistory
from coadapt.report.series import Binned
from coadapt.report.summary import Summary

#: Jobs listed per run, points of a distribution, and reports kept of one job.
SAMPLE, QUANTILES, REPORTS = 400, 300, 48
_MOST_STAYS = 200


@dataclass(frozen=True, slots=True)
class Run:
    """One run in a report. ``rho`` from ``finish_time_fairness``; by default that of rigid jobs."""

    name: str
    history: History
    summary: Summary
    rho: Mapping[str, float] | None = None
    #: The cluster in shorthand, where runs on several are compared.
    cluster: str = ""

    @property
    def gpus(self) -> int:
        """The most GPUs that the cluster had."""
        return max((gpus for _, gpus in self.history.gpu_steps), default=0)


def payload(runs: Sequence[Run], *, sample: int = SAMPLE) -> dict[str, Any]:
    """Everything the page's script draws."""
    # the same evenly spaced jobs in all runs
    names = list(dict.fromkeys(name for run in runs for name in run.history.jobs))
    step = max(1.0, len(names) / sample)
    shown = {names[int(i * step)] for i in range(min(sample, len(names)))}
    return {
        "runs": [_run(run, shown) for run in runs],
        "jobs": len(names),
        "shown": len(shown),
        "detail": all(run.history.detail for run in runs),
    }


def _run(run: Run, shown: set[str]) -> dict[str, Any]:
    history = run.history.settle()
    rho = finish_time_fairness(history) if run.rho is None else run.rho
    jct = [job.jct_s for job in history.jobs.values() if job.jct_s is not None]
    origin = history.began_at or 0.0
    return {
        "name": run.name,
        "gpus": run.gpus,
        "summary": msgspec.structs.asdict(run.summary),
        "end": _short(history.now - origin),
        "jct": _quantiles(jct),
        "rho": _quantiles(list(rho.values())),
        "series": {
            "available": _series(history.available.binned(), 1),
            "held": _series(history.held.binned(), 1),
            "changing": _series(history.changing.binned(), 1),
            "queued": _series(history.queued.binned(), 1),
            "active": _series(history.active.binned(), 1),
            "efficiency": _series(history.useful.binned(history.rated), 4),
        },
        "jobs": [_job(job, rho.get(name), origin) for name, job in history.jobs.items() if name in shown],
    }


def _quantiles(values: list[float]) -> list[list[float]]:
    """[value, share of jobs at or below it], at most ``QUANTILES`` of them."""
    if not values:
        return []
    ordered = np.sort(np.array(values))
    count = len(ordered)
    ranks = np.unique(np.linspace(0, count - 1, min(count, QUANTILES)).round().astype(int))
    return [[_short(float(ordered[rank])), round((int(rank) + 1) / count, 4)] for rank in ranks]


def _series(binned: Binned, digits: int) -> dict[str, Any]:
    values = [None if value is None else _trim(round(value, digits)) for value in binned.values]
    return {"width": binned.width_s, "values": values}


def _job(job: JobHistory, rho: float | None, origin: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": job.id,
        "name": job.spec.name,
        "user": job.spec.user,
        "at": _short(job.submitted_at - origin),
        "end": None if job.ended_at is None else _short(job.ended_at - origin),
        "state": (job.outcome or job.phase.value).lower(),
        "jct": _short(job.jct_s),
        "wait": _short(job.waited_s),
        "asked": job.spec.requested_gpus,
        "gpus": _short(job.mean_gpus),
        "hours": _short(job.held_gpu_s / 3600),
        "restarts": job.restarts,
        "eff": _short(job.mean_efficiency),
        "rho": _short(rho),
    }
    if job.stays:
        row["stays"] = _stays(job, origin)
    if job.progress:
        row["progress"] = _progress(job, origin)
    if job.reasons:
        row["why"] = job.reasons[-1][1].text
    return row


def _stays(job: JobHistory, origin: float) -> list[list[float | None]]:
    """[start, end, GPUs, 1 if training]; of a job with very many changes only the longest stays."""
    stays = job.stays
    if len(stays) > _MOST_STAYS:
        longest = sorted(stays, key=lambda stay: stay.start - stay.end)[:_MOST_STAYS]
        stays = sorted(longest)
    return [[_short(s.start - origin), _short(s.end - origin), s.gpus, int(s.training)] for s in stays]


def _progress(job: JobHistory, origin: float) -> list[list[float | None]]:
    """[time, batch size, efficiency], thinned evenly; first and last are always there."""
    count = len(job.progress)
    ranks = (
        sorted({round(i * (count - 1) / (REPORTS - 1)) for i in range(REPORTS)})
        if count > REPORTS
        else range(count)
    )
    reports = [job.progress[rank] for rank in ranks]
    return [
        [_short(r.at - origin), r.batch, None if r.efficiency is None else round(r.efficiency, 3)]
        for r in reports
    ]


def _short(value: float | None) -> Any:
    """Four digits or whole numbers: what a chart can show, and a fifth of the bytes."""
    if value is None:
        return None
    return _trim(round(value, 1) if abs(value) >= 1000 else float(f"{value:.4g}"))


def _trim(value: float) -> float:
    """A whole number without its ".0"."""
    return int(value) if value == int(value) else value
