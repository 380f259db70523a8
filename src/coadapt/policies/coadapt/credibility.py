"""How far the length of a job is believed where users compete: what a job does not show earns it nothing.

- A job that was never measured comes first only while it is measured: the oldest such jobs, on GPUs that are free or on an
  eighth of all, and each for ``MEASURING_S`` seconds. The others count as a job of median length.
- A job that has done more than was declared counts as long: nobody knows how much is left.
- A job with a model that has run for ``SILENT_S`` seconds without a report counts as long.

"Long" is twice the longest of the jobs that are believed.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from coadapt.model.snapshot import JobView, Phase
from coadapt.policies.coadapt.offers import LEVELS, Offers, work_done
from coadapt.policies.coadapt.shares import least_gpus
from coadapt.prediction.remaining.work import declared_work
from coadapt.units import format_duration

Floats = npt.NDArray[np.float64]
#: Seconds of training in which a new job has to report, and seconds without a report after which an older one is silent:
#: ten times what lies between two reports of our agents.
MEASURING_S, SILENT_S = 300.0, 600.0
#: Part of all GPUs that jobs may take to be measured, where none are free.
MEASURING_PART = 8
#: Beyond the declared work by more than this share: the declaration was wrong.
_PAST_END = 1.01
#: Length of a job, in seconds on its least GPUs, where no other job tells one.
_DAY = 86400.0


def believed(found: Offers, now: float, free: int) -> tuple[Offers, dict[int, str]]:
    """Returns the offers with the lengths that are believed, and notes about jobs whose own is not, by row.

    Args:
        found: the options of this decision.
        now: time of the decision.
        free: GPUs that nobody has.
    """
    measuring = _measuring(found, now, max(free, sum(found.capacity) // MEASURING_PART, 1))
    long: list[int] = []
    notes: dict[int, str] = {}
    for row, job in enumerate(found.jobs):
        silent_s = _silent_s(job, now)
        if found.unknown[row] and row not in measuring and silent_s > 0:
            long.append(row)
            notes[row] = "It has not reported its speed, so it counts as a long job."
        elif silent_s > SILENT_S:
            long.append(row)
            notes[row] = (
                f"It has not reported for {format_duration(SILENT_S)} or more, so it counts as a long job."
            )
        elif _beyond_declared(job, now):
            long.append(row)
            notes[row] = "It has done more work than was declared, so it counts as a long job."
    plain = np.isfinite(found.left_s) & ~found.unknown
    plain[long] = False
    longest = 2 * float(found.left_s[plain].max(initial=0.0)) or _DAY
    median = np.median(found.left_levels_s[plain], axis=0) if plain.any() else np.full(len(LEVELS), _DAY)
    left, levels = found.left_s.copy(), found.left_levels_s.copy()
    for row in np.flatnonzero(found.unknown).tolist():
        if row not in measuring:
            left[row], levels[row] = median[LEVELS.index(0.5)], median
    left[long] = np.maximum(left[long], longest)
    levels[long] = np.maximum(levels[long], longest)
    return dataclasses.replace(found, left_s=left, left_levels_s=levels), notes


def _measuring(found: Offers, now: float, room: int) -> set[int]:
    """Jobs that are measured, or to be measured next: the oldest, as many as there is room for."""
    least = least_gpus(found)
    rows = [
        row for row in np.flatnonzero(found.unknown).tolist() if _ran_s(found.jobs[row], now) <= MEASURING_S
    ]
    chosen = set[int]()
    for row in sorted(rows, key=lambda each: (not found.jobs[each].target, found.jobs[each].order)):
        if 0 < least[row] <= room:
            chosen.add(row)
            room -= int(least[row])
    return chosen


def _ran_s(job: JobView, now: float) -> float:
    """Seconds since the job first had GPUs, without those it waited since."""
    return 0.0 if job.started_at is None else now - job.submitted_at - job.waited_s(now)


def _silent_s(job: JobView, now: float) -> float:
    """Seconds of training since a job that has to report did so; 0 for one that does not train, or need not."""
    if job.spec.batch is None or job.started_at is None:
        return 0.0
    if job.measured_at is None:
        ran_s = _ran_s(job, now)
        return ran_s if ran_s > MEASURING_S else 0.0
    if job.phase is not Phase.RUNNING:
        return 0.0
    return now - max(job.measured_at, job.changed_at or 0.0)


def _beyond_declared(job: JobView, now: float) -> bool:
    spec = job.spec
    declared = (
        spec.duration_s if spec.batch is None else declared_work(epochs=spec.epochs, data_size=spec.data_size)
    )
    return declared is not None and work_done(job, now) > _PAST_END * declared
