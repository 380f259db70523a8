"""Two simple companions of the bound: the best known from below without an LP, and a schedule from above.

``shortest_first``: the whole cluster as one machine that does 1 second of GPU time per second, a job the least GPU time it
can take: shortest remaining first is optimal there (Schrage 1968), so no schedule of the cluster has a lower sum.

``list_schedule``: GPUs go where they add most, (what they add to the rate) x (the least cost of that work) x (the least
cost of all work left) ^ -power, a cost being seconds + price x GPU-seconds; until no GPU is free, again at every
arrival, every end, and often enough in between. It is feasible in the relaxed world of the bound (parts of GPUs, free
changes, the best placement for all), so the optimum there lies between the bound and it: what is between them is the
most that the bound may be too low.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.report._bound_legs import Course, FloatArray, IntArray, hull

#: The list is made anew at least so often over the time of all jobs' work.
_AGAIN = 300


def shortest_first(begins_at: FloatArray, seconds: FloatArray) -> float:
    """The sum of (end - beginning) on one machine that always does the job with the least left."""
    order = np.argsort(begins_at, kind="stable")
    waiting: list[float] = []
    now, total, at = 0.0, 0.0, 0
    while at < len(order) or waiting:
        if not waiting:
            now = max(now, float(begins_at[order[at]]))
        while at < len(order) and begins_at[order[at]] <= now:
            heapq.heappush(waiting, float(seconds[order[at]]))
            at += 1
        upto = float(begins_at[order[at]]) if at < len(order) else np.inf
        left = heapq.heappop(waiting)
        spent = min(left, upto - now)
        total += spent * (len(waiting) + 1)
        now += spent
        if left > spent:
            heapq.heappush(waiting, left - spent)
    return total


class Listed(NamedTuple):
    """Completion of every job, and the number of active jobs over time as steps (time, count)."""

    ends_at: FloatArray
    active: list[tuple[float, int]]


def list_schedule(
    begins_at: FloatArray,
    course_of: IntArray,
    courses: Sequence[Course],
    capacity: FloatArray,
    *,
    price: float,
    power: float,
) -> Listed:
    """All jobs to their end."""
    routes = [_Route.of(course, len(capacity), price) for course in courses]
    spent_s = np.array([course.gpu_s(np.ones(len(capacity))) for course in courses])
    again_s = float(spent_s[course_of].sum() / capacity.sum()) / _AGAIN
    order = np.argsort(begins_at, kind="stable").tolist()
    ends_at = np.zeros(len(begins_at))
    steps: list[tuple[float, int]] = []
    running: list[_Running] = []
    now, at, stale_at = 0.0, 0, 0.0
    while at < len(order) or running:
        if not running:
            now = max(now, float(begins_at[order[at]]))
        while at < len(order) and begins_at[order[at]] <= now:
            running.append(_Running(order[at], routes[course_of[order[at]]]))
            at, stale_at = at + 1, now
        if now >= stale_at:
            _allot(running, capacity, power)
            steps.append((now, len(running)))
            stale_at = now + again_s
        upto = min(stale_at, float(begins_at[order[at]]) if at < len(order) else np.inf)
        span = min(upto - now, min(job.left / job.rate if job.rate else np.inf for job in running))
        now += span
        for job in running:
            job.go(span)
        for job in [job for job in running if job.done]:
            ends_at[job.number] = stale_at = now
            running.remove(job)
    return Listed(ends_at, [*steps, (now, 0)])


class _Step(NamedTuple):
    """One more stretch of GPUs on the hull of a type: how many, what they add, the type."""

    slope: float
    gpus: float
    kind: int


@dataclass(frozen=True, slots=True)
class _Route:
    """A course as the list needs it."""

    work: list[float]
    steps: list[list[_Step]]
    #: By piece and type: GPUs and rates of the hull.
    hulls: list[list[tuple[FloatArray, FloatArray]]]
    #: Least cost from the start of each piece to the end of all.
    left: list[float]

    @classmethod
    def of(cls, course: Course, kinds: int, price: float) -> _Route:
        steps, hulls = [], []
        for rate in course.rate:
            on_types = []
            for kind in range(kinds):
                kept = hull(course.gpus, rate, np.nonzero(course.kind == kind)[0])
                on_types.append((np.append(0.0, course.gpus[kept]), np.append(0.0, rate[kept])))
            hulls.append(on_types)
            steps.append(
                [
                    _Step(float(more / wide) if wide else np.inf, float(wide), kind)
                    for kind, (gpus, rates) in enumerate(on_types)
                    for wide, more in zip(np.diff(gpus), np.diff(rates), strict=True)
                ]
            )
        with np.errstate(divide="ignore"):
            cost = course.work * ((1.0 + price * course.gpus) / course.rate).min(axis=1)
        left = np.append(np.cumsum(cost[::-1])[::-1], 0.0)
        return cls(course.work.tolist(), steps, hulls, left.tolist())


class _Running:
    """A job in the list."""

    __slots__ = ("done", "gpus", "kind", "left", "number", "piece", "rate", "route")

    def __init__(self, number: int, route: _Route) -> None:
        self.number, self.route = number, route
        self.piece, self.left, self.done = 0, route.work[0], False
        self.gpus, self.kind, self.rate = 0.0, -1, 0.0

    def weight(self, power: float) -> float:
        """What a unit of this piece's work is worth."""
        here, after = self.route.left[self.piece], self.route.left[self.piece + 1]
        cost = (here - after) / self.route.work[self.piece]
        return float(cost * (after + cost * self.left) ** -power)

    def settle(self) -> None:
        """Takes up the rate of its GPUs in the piece it is in."""
        if self.kind < 0:
            self.rate = 0.0
            return
        gpus, rates = self.route.hulls[self.piece][self.kind]
        self.rate = float(np.interp(self.gpus, gpus, rates))

    def go(self, span: float) -> None:
        """Works on for ``span`` seconds, at most to the end of the piece."""
        self.left -= self.rate * span
        if self.left > 1e-9 * self.route.work[self.piece]:
            return
        self.piece += 1
        self.done = self.piece == len(self.route.work)
        if not self.done:
            self.left = self.route.work[self.piece]
            self.settle()


def _allot(running: Sequence[_Running], capacity: FloatArray, power: float) -> None:
    """GPUs to whom they add most; the first of a job decide its type."""
    offers = []
    for at, job in enumerate(running):
        job.gpus, job.kind = 0.0, -1
        weight = job.weight(power)
        offers += [(-weight * step.slope, at, step) for step in job.route.steps[job.piece]]
    offers.sort()
    free = capacity.tolist()
    for _, at, step in offers:
        job = running[at]
        if free[step.kind] <= 0 or job.kind not in (-1, step.kind):
            continue
        taken = min(step.gpus, free[step.kind])
        free[step.kind] -= taken
        job.gpus, job.kind = job.gpus + taken, step.kind
    for job in running:
        job.settle()
