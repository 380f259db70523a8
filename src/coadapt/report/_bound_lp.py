"""The prices of GPUs at which the bound is highest, by an LP (HiGHS) to which plans of jobs are added as needed.

With prices q >= 0 by GPU type and slot, c the cost of a plan's time and a its GPU-seconds by type and slot, every schedule
has, by Lagrangian duality,

    sum of (end - beginning)  >=  sum over jobs of  min over its plans of (c + a q)   -   q capacity.

The highest right-hand side over q is the LP: maximise the sum of y over jobs, minus q capacity, with y <= c + a q for every
plan. (Its dual is the time-indexed LP: a mix of plans for each job that together fit the cluster, slot by slot, at
the least sum.) There are endless plans, so they are made one by one: each round solves the LP over the plans known, within a
box around the best prices so far (Marsten, Hogan, Blankenship 1975), and asks ``_bound_plan`` for every job's best plan at
the new prices. The box grows where the LP foretold the gain well, and shrinks where it did not.

What is found here are only prices. Whatever they are, ``_bound_job`` certifies the bound at them: the LP's
tolerances and an early end cost tightness, never validity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from coadapt.report._bound_job import price_legs
from coadapt.report._bound_legs import FloatArray, IntArray, Leg
from coadapt.report._bound_plan import plan

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
        """At most so many rounds, fewer once no gain above ``tolerance`` (a share) can be hoped for."""
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
