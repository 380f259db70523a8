"""Finish-time fairness: Themis (NSDI 2020), in the form of DESIGN's vocabulary.

    rho(job) = JCT shared / JCT alone on ceil(G / n) GPUs

with n the time-average of active jobs over the job's life and G that of the cluster's GPUs; "alone" is
the same job, equally adaptive, without contention. rho <= 1 is fair: sharing cost the job nothing
beyond its equal part. Themis estimates both times while the job runs; a report knows the first, and
asks whoever knows the job's ground truth for the second (``AloneTime``).

The averages are differences of the integral of a step function, which is linear between its steps: one
sort and one interpolation, O(n log n).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coadapt.model import JobSpec
from coadapt.report.cluster_history import History

FloatArray = npt.NDArray[np.float64]
#: Seconds that a job would take alone on so many GPUs; None where it is not known.
AloneTime = Callable[[str, int], float | None]


def finish_time_fairness(history: History, alone_s: AloneTime | None = None) -> dict[str, float]:
    """rho of every job that succeeded and whose time alone is known; rigid jobs by default."""
    history.settle()
    alone = alone_s if alone_s is not None else rigid_alone(history)
    done = [job for job in history.jobs.values() if job.jct_s]
    shares = fair_shares(history, [job.id for job in done])
    rho: dict[str, float] = {}
    for job, share in zip(done, shares, strict=True):
        expected = alone(job.id, share)
        if expected and job.jct_s is not None:
            rho[job.id] = job.jct_s / expected
    return rho


def fair_shares(history: History, jobs: list[str]) -> list[int]:
    """GPUs of an equal part, ceil(G / n), over each job's life (so far, if it has not ended)."""
    if not jobs:
        return []
    lives = [history.jobs[name] for name in jobs]
    starts = np.array([job.submitted_at for job in lives])
    ends = np.array([history.now if job.ended_at is None else job.ended_at for job in lives])
    span = np.maximum(ends - starts, 1e-9)
    ready = [job for job in history.jobs.values() if job.ready_at is not None]
    active_from = np.array([job.ready_at for job in ready], dtype=np.float64)
    active_to = np.array([history.now if job.ended_at is None else job.ended_at for job in ready])
    active = _integral(active_from, active_to, ends) - _integral(active_from, active_to, starts)
    n = active / span
    gpus = _mean_gpus(history, starts, ends)
    # a job that waited for others of its workflow may have seen fewer than one active job
    return [max(1, math.ceil(g / max(k, 1.0) - 1e-9)) for g, k in zip(gpus, n, strict=True)]


def _mean_gpus(history: History, starts: FloatArray, ends: FloatArray) -> FloatArray:
    """The cluster's GPUs over each life; the moments nodes came and went are kept exactly."""
    steps = history.gpu_steps
    times = np.array([at for at, _ in steps] or [0.0])
    values = np.array([gpus for _, gpus in steps] or [0])
    times = np.append(times, max(history.now, times[-1]))
    integral = np.concatenate([[0.0], np.cumsum(values * np.diff(times))])
    over: FloatArray = np.interp(ends, times, integral) - np.interp(starts, times, integral)
    level = values[np.maximum(np.searchsorted(times[:-1], starts, side="right") - 1, 0)]
    span = ends - starts
    return np.asarray(np.where(span > 0, over / np.where(span > 0, span, 1.0), level), dtype=np.float64)


def _integral(opened: FloatArray, closed: FloatArray, at: FloatArray) -> FloatArray:
    """Integral up to each ``at`` of the number of intervals that are open."""
    times = np.concatenate([opened, closed])
    change = np.concatenate([np.ones(len(opened)), -np.ones(len(closed))])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    integral = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    return np.asarray(np.interp(at, times, integral), dtype=np.float64)


def rigid_alone(history: History) -> AloneTime:
    """Times of jobs without a model, which are known by their recorded duration; None for all others."""

    def alone_s(job: str, gpus: int) -> float | None:
        return rigid_alone_s(history.jobs[job].spec, gpus)

    return alone_s


def rigid_alone_s(spec: JobSpec, gpus: int) -> float | None:
    """The recorded duration at the requested size; on fewer GPUs longer in proportion."""
    if spec.profile or spec.duration_s is None:
        return None
    return spec.duration_s * max(1.0, spec.requested_gpus / gpus)
