"""Who comes before worth: jobs that have waited too long, and deadlines that can still be met.

Both get a prize larger than everything else that is at stake together, so that the knapsack gives it up for nothing but
another such prize. Who has waited too long keeps its prize to its end: a job that was started only to be stopped again
would wait on. It counts by the GPUs of the job's least, or many small jobs would always be worth more than a large one,
and by how far beyond its bound the job is. A deadline's prize is on the options that meet it; where none does yet because
the job has not been measured on so many GPUs, on the fastest it may have.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coadapt.policies._explain import deadline_note
from coadapt.policies._offers import Offers, work_done
from coadapt.policies._worth import fair_speedup

Floats = npt.NDArray[np.float64]


def put_first(
    offers: Offers, value: Floats, after_s: Floats, now: float, *, patience: float, least_wait_s: float
) -> dict[int, str]:
    """Adds the prizes to ``value``; returns what is to be said about jobs, by row."""
    at_stake = np.where(np.isfinite(value), np.abs(value), 0.0).max(initial=0.0)
    prize = float(at_stake) * (len(offers.jobs) + 1) + 1.0
    notes: dict[int, str] = {}
    runs = offers.goodput > 0
    bound_s = _bounds_s(offers, now, patience, least_wait_s)
    least = np.where(runs, offers.size, np.iinfo(np.int_).max).min(axis=1)
    for row, job in enumerate(offers.jobs):
        waited_s = job.waited_s(now)
        if waited_s > bound_s[row] and runs[row].any():
            # whoever has got its place is not put out by one who waits as well, or both would be started for ever
            beyond = 1.0 if job.target else 1 - float(bound_s[row]) / waited_s
            value[row, runs[row]] += 2 * prize * least[row] * (1 + beyond)
            notes[row] = "it has waited as long as any job may"
        if job.spec.deadline_s is None or not runs[row].any():
            continue
        left_s = job.submitted_at + job.spec.deadline_s - now
        meets = runs[row] & (after_s[row] <= left_s)
        if not meets.any() and _best_s(offers, row) <= left_s:
            meets = after_s[row] == after_s[row].min()
        if meets.any():
            # earlier jobs first where not all can be met
            value[row, meets] += prize * (1 + 1 / (2 + row))
        elif not offers.unknown[row]:
            notes[row] = deadline_note(float(after_s[row].min()) - left_s)
    return notes


def _bounds_s(offers: Offers, now: float, patience: float, least_wait_s: float) -> Floats:
    """Seconds that each job may wait in all: so many times its whole run on its fair share, and no less than the least.

    A job whose end is not known may wait as if its run took the least.
    """
    done_s = np.array([work_done(job, now) for job in offers.jobs]) / offers.least
    run_s = (np.where(offers.unknown, 0.0, done_s) + offers.left_s) / fair_speedup(offers)
    run_s = np.where(np.isfinite(run_s), run_s, least_wait_s)
    return np.asarray(np.maximum(patience * run_s, least_wait_s))


def _best_s(offers: Offers, row: int) -> float:
    """Seconds to the job's end on the best it may ever have here, changes aside."""
    best = float(offers.expected[row].max())
    return float(offers.left_s[row] * offers.least[row]) / best if best > 0 else math.inf
