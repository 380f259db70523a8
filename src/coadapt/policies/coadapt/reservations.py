"""Reservations for jobs that waited too long: EASY backfill (Lifka, 1995) among jobs that may not be preempted.

A job that has waited ``patience`` times its own run at the size it asked for, and at least ``least_wait_s``, gets a
reservation: the first moment at which enough GPUs are free of jobs that may not be preempted, by their time limits, which are
enforced. Until then such a job starts only if its own limit ends before that moment, or if it uses GPUs that the reserved
job does not need. Jobs that may be preempted are not held back: they give way when the moment has come.

Where a job that may not be preempted has no time limit, and its GPUs are needed, no moment can be promised. Then no other
such job starts on GPUs that are needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.model.snapshot import JobView
from coadapt.policies._base import gpus_needed
from coadapt.policies.coadapt.knapsack import Problem
from coadapt.policies.coadapt.offers import Offers, work_done
from coadapt.units import format_duration

Floats = npt.NDArray[np.float64]


class Reservation(NamedTuple):
    """GPUs for a job that waited too long."""

    row: int
    gpus: int
    #: The latest start; infinite where none can be promised.
    at: float
    #: GPUs that are not needed for it at that moment.
    spare: int
    #: Jobs without a time limit that are in the way.
    blocked_by: tuple[str, ...] = ()


class _Hold(NamedTuple):
    job: str
    gpus: int
    start: float
    end: float


#: Key of the policy's memory: the start promised to each job that has a reservation; -1 where none can be promised.
RESERVATIONS = "reservations"
_NO_MOMENT = -1.0


class Backfill(NamedTuple):
    """What a decision has to respect for jobs that waited too long."""

    #: GPUs that each overdue job needs, by row; those that run included.
    overdue: dict[int, int]
    made: list[Reservation]
    #: Jobs that may not start now, by row.
    back: dict[int, Reservation]
    notes: dict[int, str]
    #: Start that was promised first, by job.
    promises: dict[str, float]

    @property
    def reserved(self) -> frozenset[int]:
        """Rows of jobs that have a reservation."""
        return frozenset(reservation.row for reservation in self.made)

    def without(self, problem: Problem, also: Collection[int] = ()) -> Problem:
        """Returns the problem without options of jobs that may not start now."""
        rows = [*self.back, *also]
        if not rows:
            return problem
        value = problem.value.copy()
        value[np.array(rows), 1:] = -np.inf
        return problem._replace(value=value)

    def overdue_gpus(self, parties: Sequence[str]) -> dict[str, int]:
        """GPUs of the largest overdue job of each party."""
        found: dict[str, int] = {}
        for row, gpus in self.overdue.items():
            found[parties[row]] = max(found.get(parties[row], 0), gpus)
        return found

    def ready_gpus(self, parties: Sequence[str], now: float) -> dict[str, int]:
        """GPUs of jobs whose reserved moment has come, by party: the first of each."""
        found: dict[str, int] = {}
        for reservation in self.made:
            if reservation.at <= now:
                found.setdefault(parties[reservation.row], reservation.gpus)
        return found


def backfill(
    found: Offers,
    staying: Sequence[JobView],
    now: float,
    cost_s: Mapping[str, float],
    change_s: float,
    promises: Mapping[str, float],
    *,
    patience: float,
    least_wait_s: float,
) -> Backfill:
    """Returns the reservations of this decision, and what they keep from starting.

    Args:
        found: the options of this decision.
        staying: jobs that keep what they have.
        now: time of the decision.
        cost_s: seconds that a start of each job takes, by job.
        change_s: the same for jobs that ``cost_s`` does not name.
        promises: starts that were promised before, by job.
        patience: a job waits at most so many times its run at the size it asked for ...
        least_wait_s: ... and at least so many seconds, before it gets a reservation.
    """
    overdue = _overdue(found, now, patience, least_wait_s)
    firm = any(not job.spec.preemptible for job in [*staying, *found.jobs])
    if not overdue or not firm:
        return Backfill(overdue, [], {}, {}, {})
    costs = {job.id: cost_s.get(job.id, change_s) for job in [*staying, *found.jobs]}
    made = reservations(found, staying, list(overdue), now, costs)
    back = held_back(found, made, now, costs)
    notes, kept = {}, {}
    for reservation in made:
        name = found.jobs[reservation.row].id
        at = reservation.at if math.isfinite(reservation.at) else _NO_MOMENT
        known = promises.get(name)
        kept[name] = at if known is None or known == _NO_MOMENT else known
        if known is None or (known == _NO_MOMENT) != (at == _NO_MOMENT):
            notes[reservation.row] = _promise(reservation, now)
    for row, reservation in back.items():
        waits = found.jobs[reservation.row].id
        notes[row] = f"It cannot be preempted and would delay {waits}, which has waited too long."
    return Backfill(overdue, made, back, notes, kept)


def _promise(reservation: Reservation, now: float) -> str:
    gpus = f"{reservation.gpus} GPU{'' if reservation.gpus == 1 else 's'}"
    if math.isfinite(reservation.at):
        return f"It has waited too long: {gpus} are reserved for it in {format_duration(reservation.at - now)} at the latest."
    others = ", ".join(reservation.blocked_by[:3])
    return (
        f"It has waited too long: the next {gpus} that become free are reserved for it. No time can be promised: {others} cannot"
        " be preempted and has no time limit."
    )


def _overdue(found: Offers, now: float, patience: float, least_wait_s: float) -> dict[int, int]:
    """Rows of jobs that have waited too long, and the least GPUs that each needs."""
    overdue: dict[int, int] = {}
    for row, job in enumerate(found.jobs):
        waited_s = job.waited_s(now)
        runs = found.expected[row] > 0
        if waited_s <= least_wait_s or not runs.any():
            continue
        if waited_s > patience * _run_s(found, row, now):
            overdue[row] = int(found.size[runs].min())
    return overdue


def _run_s(found: Offers, row: int, now: float) -> float:
    """Seconds of the job's whole run at the size it asked for; 1 where nothing is known of it."""
    job = found.jobs[row]
    asked = (found.size == gpus_needed(job.spec)) & (found.expected[row] > 0)
    goodput = float(found.expected[row, asked].max()) if asked.any() else float(found.expected[row].max())
    done = 0.0 if found.unknown[row] else work_done(job, now)
    work = done + float(found.left_s[row] * found.least[row])
    return max(work / goodput, 1.0) if goodput > 0 and math.isfinite(work) else 1.0


def reservations(
    found: Offers, staying: Sequence[JobView], overdue: Sequence[int], now: float, cost_s: Mapping[str, float]
) -> list[Reservation]:
    """Returns a reservation for each overdue job that waits, the one that was submitted first first.

    Args:
        found: the options of this decision.
        staying: jobs that keep what they have.
        overdue: rows of jobs that have waited too long.
        now: time of the decision.
        cost_s: seconds that the start of a job takes, by job.
    """
    capacity = sum(found.capacity) + sum(job.target_gpus for job in staying)
    holds = [_hold(job, now, cost_s.get(job.id, 0.0)) for job in staying if not job.spec.preemptible]
    made: list[Reservation] = []
    waiting = [row for row in overdue if not found.jobs[row].target]
    for row in sorted(waiting, key=lambda each: found.jobs[each].order):
        runs = found.expected[row] > 0
        if not runs.any():
            continue
        gpus, job = int(found.size[runs].min()), found.jobs[row]
        at = _first(holds, capacity, gpus, now)
        endless = tuple(hold.job for hold in holds if math.isinf(hold.end)) if math.isinf(at) else ()
        then = [hold for hold in holds if hold.end > at] if math.isfinite(at) else holds
        spare = capacity - gpus - sum(hold.gpus for hold in then)
        made.append(Reservation(row, gpus, at, spare, endless))
        if math.isfinite(at) and not job.spec.preemptible:
            limit = job.spec.time_limit_s
            end = math.inf if limit is None else at + limit + cost_s.get(job.id, 0.0)
            holds.append(_Hold(job.id, gpus, at, end))
    return made


def _hold(job: JobView, now: float, cost_s: float) -> _Hold:
    limit_s = job.spec.time_limit_s
    if limit_s is None:
        return _Hold(job.id, job.target_gpus, now, math.inf)
    if job.limit_at is not None:
        return _Hold(job.id, job.target_gpus, now, max(job.limit_at, now))
    return _Hold(job.id, job.target_gpus, now, max(job.changed_at or now, now) + cost_s + limit_s)


def _first(holds: Sequence[_Hold], capacity: int, gpus: int, now: float) -> float:
    """The first moment from which enough GPUs are free of these holds for ever."""
    if capacity - sum(hold.gpus for hold in holds) >= gpus:
        return now
    for end in sorted({hold.end for hold in holds}):
        if math.isfinite(end) and capacity - sum(hold.gpus for hold in holds if hold.end > end) >= gpus:
            return end
    return math.inf


def held_back(
    found: Offers, made: Sequence[Reservation], now: float, cost_s: Mapping[str, float]
) -> dict[int, Reservation]:
    """Returns the waiting jobs that may not start now, because they would delay a reservation, and which one; by row."""
    spare = [reservation.spare for reservation in made]
    mine = {reservation.row for reservation in made}
    back: dict[int, Reservation] = {}
    rows = [row for row, job in enumerate(found.jobs) if not job.target and not job.spec.preemptible]
    for row in sorted(rows, key=lambda each: found.jobs[each].order):
        if row in mine and made[0].row == row:
            continue
        job = found.jobs[row]
        gpus, limit_s = gpus_needed(job.spec), job.spec.time_limit_s
        ends = now + cost_s.get(job.id, 0.0) + limit_s if limit_s is not None else math.inf
        delayed = [
            number
            for number, each in enumerate(made)
            if each.row != row and not (math.isfinite(each.at) and ends <= each.at)
        ]
        blocking = next((number for number in delayed if spare[number] < gpus), None)
        if blocking is not None:
            back[row] = made[blocking]
            continue
        for number in delayed:
            spare[number] -= gpus
    return back
