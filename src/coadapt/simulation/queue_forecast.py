"""Forecast of a long queue by list scheduling: coarser than a simulation, and in proportion to the number of jobs.

A simulation asks the policy at every event, which takes minutes for thousands of jobs. Here each job runs once, at the size
that it asked for, on the GPUs that become free first; users take turns, and the jobs of a user come by priority and age.
Neither preemption nor resizes are modelled, nor that small jobs overtake large ones. Work and speed are drawn as in a
simulation, so that the spread of the draws gives the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coadapt.configure import Curve
from coadapt.model import JobSpec
from coadapt.model.snapshot import ENDED, HOLDING
from coadapt.prediction.remaining.work import RemainingWork
from coadapt.scheduler import FittedCurves, SchedulerState
from coadapt.scheduler.state.job_state import JobState
from coadapt.simulation.engine.predicted_training import EVEN, draw_luck, rate_at, work_left


@dataclass(slots=True)
class QueueRun:
    """The outcome of one draw; times in unix seconds, by job."""

    starts: dict[str, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    gpu_s: dict[str, float] = field(default_factory=dict)
    batch: dict[str, int] = field(default_factory=dict)
    #: When jobs were stopped because their time limit had passed.
    limits: dict[str, float] = field(default_factory=dict)
    #: Jobs that this draw says never end.
    endless: set[str] = field(default_factory=set)


class QueueForecast:
    """The queue of a state at one moment, which can be drawn repeatedly.

    Args:
        state: State of the live cluster; it is not changed.
        now: The present time.
        add: (name, specification) of jobs that are submitted now.
    """

    def __init__(self, state: SchedulerState, now: float, add: Iterable[tuple[str, JobSpec]] = ()) -> None:
        self._now = now
        self._gpus: dict[str, int] = {}
        for node in state.nodes.values():
            self._gpus[node.node.gpu_type] = self._gpus.get(node.node.gpu_type, 0) + node.node.gpus
        added = [JobState(name, spec, len(state.jobs) + place, now) for place, (name, spec) in enumerate(add)]
        curves = FittedCurves()
        curves.of(state)
        jobs = [*(job for job in state.jobs.values() if job.phase not in ENDED), *added]
        self._curves = {job.id: curves.curve(job) for job in jobs}
        self._running = [job for job in jobs if job.phase in HOLDING]
        self._waiting = _in_turns(
            [job for job in jobs if job.phase not in HOLDING and not job.on_hold and job.quarantine is None]
        )
        self._rates: dict[tuple[str, str], float] = {}
        #: Distributions of the work left: the same in every draw.
        self._left: dict[str, RemainingWork] = {}

    def draw(self, number: int, seed: int) -> QueueRun:
        """Returns one outcome: the medians for ``number`` 0, otherwise one that ``seed`` and number give."""
        found = QueueRun()
        rng = np.random.default_rng((seed, number)) if number else None
        free = {kind: np.full(gpus, self._now) for kind, gpus in self._gpus.items()}
        for job in self._running:
            end = self._now + self._duration(job, job.held.gpu_type, rng, found)
            found.starts[job.id] = self._now
            self._finish(job, end, job.held_gpus, found)
            # a node that is drained is not among them, its jobs are
            if (mine := free.get(job.held.gpu_type)) is not None:
                busy = np.argsort(mine, kind="stable")[: job.held_gpus]
                mine[busy] = end
        later = self._place(self._waiting, free, rng, found)
        self._place(later, free, rng, found)
        return found

    def _place(
        self,
        jobs: Sequence[JobState],
        free: dict[str, npt.NDArray[np.float64]],
        rng: np.random.Generator | None,
        found: QueueRun,
    ) -> list[JobState]:
        """Places the jobs in their order; returns those that wait for one which has no end yet."""
        later = []
        for job in jobs:
            needed = [found.ends.get(name) for name in job.spec.after if name in self._curves]
            if any(end is None for end in needed):
                later.append(job)
                continue
            ready = max((end for end in needed if end is not None), default=self._now)
            gpus = max(job.spec.requested_gpus, 1)
            best: tuple[float, str, npt.NDArray[np.intp] | np.intp] | None = None
            for kind in job.spec.gpu_types or free:
                there = free.get(kind)
                if there is None or there.size < gpus:
                    continue
                # most jobs of long queues take one GPU: the first that is free
                which = there.argmin() if gpus == 1 else np.argpartition(there, gpus - 1)[:gpus]
                start = max(float(there[which].max()), ready)
                if best is None or start < best[0]:
                    best = start, kind, which
            if best is None or math.isinf(best[0]):
                continue
            start, kind, which = best
            end = start + self._duration(job, kind, rng, found)
            free[kind][which] = end
            found.starts[job.id] = start
            self._finish(job, end, gpus, found)
        return later

    def _finish(self, job: JobState, end: float, gpus: int, found: QueueRun) -> None:
        found.ends[job.id] = math.inf if job.id in found.endless else end
        limit_s = job.spec.time_limit_s
        if limit_s is not None and end - found.starts[job.id] > limit_s:
            found.limits[job.id] = found.starts[job.id] + limit_s
        found.gpu_s[job.id] = job.attained_gpu_s(self._now) + gpus * (end - found.starts[job.id])
        if job.config is not None and job.spec.batch is not None:
            found.batch[job.id] = job.config.batch

    def _duration(self, job: JobState, kind: str, rng: np.random.Generator | None, found: QueueRun) -> float:
        curve = self._curves[job.id]
        level, luck = 0.5, EVEN
        if rng is not None:
            level, luck = float(rng.uniform(0.01, 0.99)), draw_luck(job, curve, rng)
        known = self._left.get(job.id)
        if known is None:
            known = self._left[job.id] = curve.remaining()
        left = work_left(job, curve, self._now, level, known)
        if not left.ends:
            found.endless.add(job.id)
        return left.work / (self._rate(job, curve, kind) * math.exp(luck.pace))

    def _rate(self, job: JobState, curve: Curve, kind: str) -> float:
        key = job.id, kind
        if key not in self._rates:
            if job.phase in HOLDING or not curve.fitted:
                rate = rate_at(curve, job.held)
            else:
                goodput = float(curve.goodput(1, job.spec.requested, kind))
                rate = goodput if goodput > 0 else 1.0
            self._rates[key] = rate
        return self._rates[key]


def _in_turns(jobs: Iterable[JobState]) -> list[JobState]:
    """The first job of every user, then the second of every user, and so on."""
    turns: dict[str, int] = {}
    places = []
    for job in sorted(jobs, key=lambda job: (-job.spec.priority, job.order)):
        turn = turns[job.spec.user] = turns.get(job.spec.user, -1) + 1
        places.append((turn, job.order, job))
    return [job for _, _, job in sorted(places, key=lambda place: place[:2])]
