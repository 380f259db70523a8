"""A certified lower bound on the average JCT that any schedule can reach, and how loose it may be itself.

The bound holds for a relaxed world, in which every real schedule remains possible and none becomes slower:

1. A job begins to train no earlier than its first possible decision plus the cost of one start (``begins_at``), and
   pays for no other change; while it starts it holds nothing.
2. It trains at the best rate there is for its GPUs in each piece of its work, whatever the placement and batch size.
3. GPUs can be divided in time and number: a rate between two options is their mix, so rates are concave.
4. Jobs share nothing but the number of GPUs of each type, slot of time by slot of time: within a slot it is enough that
   the GPU time fits. Coarser slots only relax more, and after the last one GPUs are not counted.

In that world the sum of completion times is bounded by Lagrangian duality. With prices q >= 0 by GPU type and slot, c
the cost of a plan's time and a its GPU-seconds by type and slot, every schedule has

    sum of (end - beginning)  >=  sum over jobs of  min over its plans of (c + a q)   -   q capacity.

Prices (``Search``). The highest right-hand side over q is an LP: maximise the sum of y over jobs, minus q capacity,
with y <= c + a q for every plan. Its dual is the time-indexed LP: a mix of plans for each job that together fit the
cluster, slot by slot, at the least sum. There are infinitely many plans, so they are generated one by one: each round
solves the LP (HiGHS) over the known plans, within a box around the best prices so far (Marsten, Hogan, Blankenship
1975), and asks ``lower_bound_jobs`` for every job's best plan at the new prices. The box grows if the LP predicted the
gain well, and shrinks if it did not.

Certificate (``Relaxed.certified``). What a job costs alone at given prices is bounded by LP duality again, in
continuous time (``lower_bound_jobs``). Both dualities hold for any multipliers, so the value is recomputed from the
prices in plain arithmetic, less a margin for rounding, and does not depend on the solver: its tolerances and an early
end cost tightness, never validity.

Two simpler bounds are taken where they are higher: every job alone on the whole cluster, and ``shortest_first``, which
treats the whole cluster as one machine that does 1 second of GPU time per second and a job as the least GPU time it can
take. Shortest remaining first is optimal there (Schrage 1968), so no schedule of the cluster has a lower sum.

Looseness (``list_schedule``). A list schedule gives GPUs to where they add most, (what they add to the rate) x (the
least cost of that work) x (the least cost of all work left) ^ -power, a cost being seconds + price x GPU-seconds; until
no GPU is free, again at every arrival, every end, and often enough in between. It is feasible in the relaxed world
(parts of GPUs, free changes, the best placement for all), so the optimum there lies between the bound and it: their
distance is the most by which the bound may be too low.

See docs/design/0010-lower-bound.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.report.lower_bound_jobs import Course, FloatArray, IntArray, Leg, hull, legs_of, plan, price_legs
from coadapt.units import format_duration

#: Prices that the first plans are made at, as multiples of active jobs per GPU.
_LADDER = (0.0, 0.05, 0.2, 0.8)
_GROW, _SHRINK, _GOOD = 1.5, 0.6, 0.5
#: How many prices worths are taken from, in the search and for the final value, and parts of a slot for the latter.
_DETAIL, _CERTIFIED_DETAIL, _PARTS = 8, 20, (4, 12)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Relaxed:
    """The relaxed world: when jobs may begin, what they go through, GPUs by type, and slots of time."""

    begins_at: FloatArray
    course_of: IntArray
    legs: Sequence[Sequence[Leg]]
    capacity: FloatArray
    times: FloatArray

    def certified(self, prices: FloatArray) -> float:
        """A lower bound on the sum of (end - beginning), at these prices."""
        total, size = 0.0, 0.0
        for number, legs in enumerate(self.legs):
            begins_at = self.begins_at[self.course_of == number]
            if len(begins_at):
                parts = self._parts(legs)
                times = _split(self.times, parts)
                line, _ = price_legs(legs, times, np.repeat(prices, parts, axis=1), detail=_CERTIFIED_DETAIL)
                costs = line.at(times, begins_at) - begins_at
                total, size = total + float(costs.sum()), size + float(np.abs(costs).sum())
        paid = float((self.capacity[:, None] * prices * np.diff(self.times)).sum())
        # far more than all rounding errors of the sums above
        return total - paid - 1e-9 * (size + paid + len(self.begins_at) * float(np.abs(self.times).max()))

    def _parts(self, legs: Sequence[Leg]) -> int:
        """Into how many parts slots are cut for these legs: short against the legs, at little cost for long ones."""
        leg_s = sum(leg.work / float(leg.rate.max()) for leg in legs) / len(legs)
        slot_s = float(self.times[-1] - self.times[0]) / (len(self.times) - 1)
        return int(np.clip(3 * slot_s / leg_s, *_PARTS))


@dataclass(slots=True)
class Search:
    """The search for prices. ``shape``: prices to begin with, by type and slot, up to a factor."""

    world: Relaxed
    shape: FloatArray
    #: The highest found, as the plans say, and its prices.
    best: float = field(default=-np.inf, init=False)
    prices: FloatArray = field(init=False)
    _owner: list[int] = field(default_factory=list, init=False)
    _cost: list[float] = field(default_factory=list, init=False)
    _use: list[FloatArray] = field(default_factory=list, init=False)

    def run(self, rounds: int, tolerance: float, on_round: Callable[[int, int], None]) -> None:
        """Searches for prices in at most ``rounds`` rounds; ``on_round`` is called with (rounds done, rounds in all).

        Ends early once the LP predicts no gain above ``tolerance``, a share of the bound.
        """
        self.prices = self.shape * 0.0
        for number, factor in enumerate(_LADDER):
            self._look(self.shape * factor)
            on_round(number + 1, len(_LADDER) + rounds)
        radius = 1.0
        for number in range(rounds):
            reach = radius * (self.prices + max(self.prices.mean(), 0.01 * self.shape.mean()))
            hoped, prices = self._foretold(np.maximum(self.prices - reach, 0.0), self.prices + reach)
            before = self.best
            if hoped - before <= tolerance * abs(hoped):
                break
            self._look(prices)
            gained = self.best - before
            if gained <= 0:
                radius *= _SHRINK
            elif gained > _GOOD * (hoped - before):
                radius *= _GROW
            on_round(len(_LADDER) + number + 1, len(_LADDER) + rounds)

    def _look(self, prices: FloatArray) -> None:
        """Makes every job's plan at these prices."""
        world, total = self.world, 0.0
        for number, legs in enumerate(world.legs):
            jobs = np.nonzero(world.course_of == number)[0].tolist()
            if not jobs:
                continue
            _, priced = price_legs(legs, world.times, prices, detail=_DETAIL)
            for job in jobs:
                begins_at = float(world.begins_at[job])
                made = plan(priced, world.times, len(world.capacity), begins_at)
                self._owner.append(job)
                self._cost.append(made.ends_at - begins_at)
                self._use.append(made.gpu_s.ravel())
                total += self._cost[-1] + float((made.gpu_s * prices).sum())
        total -= float((world.capacity[:, None] * prices * np.diff(world.times)).sum())
        if total > self.best:
            self.best, self.prices = total, prices

    def _foretold(self, low: FloatArray, high: FloatArray) -> tuple[float, FloatArray]:
        """The LP over the plans known, with prices in a box: its value and prices."""
        # imported here: every command that makes a report would wait for it
        from scipy import sparse
        from scipy.optimize import linprog

        jobs, plans = len(self.world.begins_at), len(self._owner)
        owners = sparse.csr_matrix((np.ones(plans), (np.arange(plans), self._owner)), shape=(plans, jobs))
        matrix = sparse.hstack([owners, -sparse.csr_matrix(np.array(self._use))]).tocsr()
        capacity = self.world.capacity[:, None] * np.diff(self.world.times)
        bounds = np.concatenate(
            [
                np.tile([-np.inf, np.inf], (jobs, 1)),
                np.column_stack([low.ravel(), high.ravel()]),
            ]
        )
        # (the types of scipy's stubs know no sparse matrix here)
        found = linprog(  # type: ignore[call-overload]
            np.concatenate([-np.ones(jobs), capacity.ravel()]),
            A_ub=matrix,
            b_ub=np.array(self._cost),
            bounds=bounds,
            method="highs",
        )
        if found.x is None:  # the solver gave up: no more can be hoped for
            return self.best, self.prices
        return float(-found.fun), np.maximum(found.x[jobs:], 0.0).reshape(low.shape)


def _split(times: FloatArray, parts: int) -> FloatArray:
    """Every slot in equal parts."""
    inside = times[:-1, None] + np.diff(times)[:, None] * np.arange(parts) / parts
    return np.append(inside.ravel(), times[-1])


#: The list is made anew at least so often over the time of all jobs' work.
_AGAIN = 300


def shortest_first(begins_at: FloatArray, seconds: FloatArray) -> float:
    """Returns the sum of (end - beginning) on one machine that always runs the job with the least time left."""
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
    """Runs all jobs to their end by a list schedule of the relaxed world.

    Args:
        begins_at: When each job may begin.
        course_of: Index of each job's course.
        courses: Work and rates of jobs that behave alike.
        capacity: GPUs of each type.
        price: Price of a GPU-second, in seconds, by which work is weighed.
        power: How strongly jobs with little work left are preferred.
    """
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


__all__ = ["BoundJob", "Course", "LowerBound", "bound_sentence", "lower_bound"]

#: Beyond this the LP takes minutes.
MOST_JOBS = 1000
SLOTS, LEGS, ROUNDS, TOLERANCE = 144, 8, 24, 0.002
#: List schedules tried: price of all GPUs in seconds per second, and power.
_LISTS = ((4.0, 0.2), (8.0, 0.2), (8.0, 0.35), (20.0, 0.2), (20.0, 0.35), (1e6, 0.35), (1e6, 1.0))


class BoundJob(NamedTuple):
    """One job: its course by number, and the earliest moment at which it can train."""

    submitted_at: float
    begins_at: float
    course: int


class LowerBound(Fact, frozen=True):
    """Average JCT, in seconds, over all jobs."""

    jobs: int
    #: The highest of the three below: no schedule is better.
    avg_jct_s: float
    lp_s: float
    alone_s: float
    shortest_first_s: float
    #: A schedule of the relaxed world: its optimum, and so any such bound, is no higher.
    relaxed_s: float

    @property
    def gap(self) -> float:
        """By what share the bound may be too low for the relaxed world."""
        return max(self.relaxed_s / self.avg_jct_s - 1.0, 0.0)

    def loose_share(self, avg_jct_s: float) -> float:
        """The share of a policy's distance from the bound that may be the bound's own looseness, at most."""
        distance = avg_jct_s - self.avg_jct_s
        return min((self.relaxed_s - self.avg_jct_s) / distance, 1.0) if distance > 0 else 1.0


def lower_bound(
    jobs: Sequence[BoundJob],
    courses: Sequence[Course],
    capacity: Sequence[float],
    *,
    slots: int = SLOTS,
    rounds: int = ROUNDS,
    times: FloatArray | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> LowerBound:
    """Computes the lower bound on the average JCT.

    Args:
        jobs: Submission, earliest beginning and course of every job.
        courses: Work and rates of jobs that behave alike.
        capacity: GPUs of each type.
        slots: Number of time slots, shorter where more jobs are active.
        rounds: Most rounds of the search for prices.
        times: Ends of the slots, instead of ``slots`` of them.
        on_round: Called with (rounds done, rounds in all).
    """
    _check(jobs, courses, capacity)
    begins_at = np.array([job.begins_at for job in jobs])
    course_of = np.array([job.course for job in jobs])
    gpus = np.array(capacity, dtype=np.float64)
    waits_s = float(sum(job.begins_at - job.submitted_at for job in jobs))
    lists = [
        list_schedule(begins_at, course_of, courses, gpus, price=price / float(gpus.sum()), power=power)
        for price, power in _LISTS
    ]
    listed = min(lists, key=lambda one: float(one.ends_at.sum()))
    if times is None:
        times = _slots(listed, float(begins_at.min()), slots)
    # every job begins within a slot
    times = np.union1d(times, [begins_at.min(), begins_at.max() + 1.0])
    world = Relaxed(
        begins_at=begins_at,
        course_of=course_of,
        legs=[legs_of(course, LEGS) for course in courses],
        capacity=gpus,
        times=times,
    )
    search = Search(world, _busy(listed, times) / gpus.sum() * np.ones((len(gpus), 1)))
    search.run(rounds, TOLERANCE, on_round or (lambda done, total: None))
    lp_s = world.certified(search.prices)
    spent_s = np.array([course.gpu_s(np.ones(len(gpus))) for course in courses]) / gpus.sum()
    alone_s = np.array([course.alone_s for course in courses])
    found = {
        "lp_s": lp_s,
        "alone_s": float(alone_s[course_of].sum()),
        "shortest_first_s": shortest_first(begins_at, spent_s[course_of]),
    }
    averages = {name: (value + waits_s) / len(jobs) for name, value in found.items()}
    relaxed_s = (float((listed.ends_at - begins_at).sum()) + waits_s) / len(jobs)
    return LowerBound(jobs=len(jobs), avg_jct_s=max(averages.values()), relaxed_s=relaxed_s, **averages)


def _check(jobs: Sequence[BoundJob], courses: Sequence[Course], capacity: Sequence[float]) -> None:
    if not jobs:
        raise InputError("a bound needs at least one job")
    if len(jobs) > MOST_JOBS:
        raise InputError(
            f"{len(jobs):,} jobs are too many for a bound; it takes {MOST_JOBS:,}: give it a part of the trace"
        )
    if min(capacity, default=0) <= 0:
        raise InputError("a bound needs at least one GPU of each type")
    for number, course in enumerate(courses):
        if not len(course.work) or not (course.work > 0).all() or not (course.rate.max(axis=1) > 0).all():
            raise InputError(
                f"course {number} needs pieces of work, each with an option that gets on with it"
            )


def _slots(listed: Listed, first: float, slots: int) -> FloatArray:
    """Slots of equal length times the root of active jobs: fine where much happens, coarse in a long tail."""
    at = np.array([moment for moment, _ in listed.active])
    weight = np.sqrt([count for _, count in listed.active])[:-1]
    along = np.append(0.0, np.cumsum(np.diff(at) * np.maximum(weight, 0.5)))
    cuts = np.interp(np.linspace(0.0, along[-1], slots + 1), along, at)
    return np.unique(np.append(cuts, first))


def _busy(listed: Listed, times: FloatArray) -> FloatArray:
    """Active jobs in the middle of every slot."""
    at = np.array([moment for moment, _ in listed.active])
    count = np.array([count for _, count in listed.active], dtype=np.float64)
    return np.asarray(count[np.searchsorted(at, (times[:-1] + times[1:]) / 2, side="right") - 1])


def bound_sentence(bound: LowerBound, name: str, avg_jct_s: float) -> str:
    """Returns a sentence for users that compares the best run with the bound."""
    return (
        f"No schedule can bring the average JCT of these {bound.jobs:,} jobs below {format_duration(bound.avg_jct_s)}: "
        f"a certified lower bound, for a world in which changes after the first start are free, every placement is the best "
        f"one and all is known in advance. {name} takes {avg_jct_s / bound.avg_jct_s:.2f} times as long. At most "
        f"{bound.loose_share(avg_jct_s):.0%} of that distance may be the bound's own looseness; the rest is what that world "
        f"leaves out, and what the policy could do better."
    )
