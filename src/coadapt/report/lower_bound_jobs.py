"""Jobs of the lower bound: their work in legs, the least cost of each under prices of GPUs, and the plan that reaches it.

Legs (``legs_of``). A job is a sequence of pieces (epochs of work), each with the rate of work of every option: so many
GPUs of a type. Adjacent pieces are joined into a leg. With any weights v > 0 on the work of pieces e, no schedule does
the weighted work of the leg faster than

    rate(option) = max over e of  v_e rate_e(option)          work = sum over e of  v_e work_e

so a leg in the place of its pieces can only make a job quicker: lower bounds stay lower bounds. The weights

    v_e = min over options of  (1 + p GPUs) / rate_e          p: a price of a GPU against a second

make all pieces cost the same at that price, and pieces that are much alike lose next to nothing at others. Which
neighbours are joined is chosen by the loss over several prices, smallest first.

Cost (``price_legs``). The least that the finish time of a job and its GPUs together can cost, bounded from below.
Prices are constant within a slot of time. With h(m) = max over options of (m rate - price GPUs), at least 0, a leg
done between t and u costs at least

    m work - integral from t to u of h(m),        whatever m >= 0, the worth of a unit of work            (1)

for work = integral of rate and price GPUs >= m rate - h(m) at every moment. Best of all m it is exact (LP duality). So
the least cost J of a job that may begin the leg at t, K that of beginning the next leg (after the last: K(u) = u), is

    J(t) >= min over u >= t of  max over m of  [ m work - integral of h(m) + K(u) ].                      (2)

Nothing in this is rounded: times are continuous. J is kept from below as a line on every slot. By induction K is such a
line, then for u within one slot and one m (2) is a line in u, least at an end of the slot, and a line in t for t within
one slot. Choosing one m for each pair of slots gives one line in t for each slot of u; their minimum is concave and
lies above the line through its values at the ends of the slot: this is the line that is kept. For u = t's own slot the
same holds with u >= t. After the last slot GPUs cost nothing. Any choice of m makes a valid line, so the few m that are
tried, and which is taken, decide how tight the bound is and never whether it holds.

Plan (``plan``). A plan carries out what ``price_legs`` found the cost of, with its GPU time slot by slot. It is
feasible in the relaxed world of the bound: it mixes options within a slot and does exactly the work of every leg. Its
cost is therefore an upper bound on the job's least cost at any prices, as the search for prices requires; that it is
near the least one makes the search quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int_]

#: Prices at which legs are judged, times GPUs of the largest option; the weights are those of the third.
_PRICES = (0.0, 1.0, 4.0, 16.0, 64.0, 1000.0)
_WEIGHTS = 2
#: Neighbours whose loss is below this are put together even where more legs would be allowed.
_ALIKE = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A job's pieces, in order. Jobs that behave alike share one."""

    #: Work of each piece, in any unit.
    work: FloatArray
    #: GPUs of each option, and the number of their type.
    gpus: FloatArray
    kind: IntArray
    #: Work per second by piece and option; 0 where an option is not possible.
    rate: FloatArray

    @property
    def alone_s(self) -> float:
        """Seconds of training if the job had the whole cluster."""
        return float((self.work / self.rate.max(axis=1)).sum())

    def gpu_s(self, weights: FloatArray) -> float:
        """Returns the least GPU time the job can take, with GPUs of each type weighted by ``weights``."""
        with np.errstate(divide="ignore"):
            spent = (self.gpus * weights[self.kind]) / self.rate
        return float((self.work * spent.min(axis=1)).sum())


class Leg(NamedTuple):
    """Pieces put together, with the options that are on the concave hull of their type."""

    work: float
    gpus: FloatArray
    kind: IntArray
    rate: FloatArray


def legs_of(course: Course, most: int) -> list[Leg]:
    """Joins the pieces of a course into at most ``most`` legs."""
    with np.errstate(divide="ignore"):
        prices = np.array(_PRICES) / max(course.gpus.max(), 1.0)
        costs = np.array([((1.0 + price * course.gpus) / course.rate).min(axis=1) for price in prices])
    merge = _Merge(course, prices, costs)
    parts = [merge.part(at, at + 1) for at in range(len(course.work))]
    joined = [merge.part(at, at + 2) for at in range(len(parts) - 1)]
    while joined:
        extra = [
            both.loss - one.loss - two.loss for both, one, two in zip(joined, parts, parts[1:], strict=False)
        ]
        at = int(np.argmin(extra))
        if len(parts) <= most and extra[at] > _ALIKE:
            break
        parts[at : at + 2] = [joined[at]]
        first, last = parts[at].first, parts[at].last
        joined[max(at - 1, 0) : at + 2] = [
            *([merge.part(parts[at - 1].first, last)] if at else []),
            *([merge.part(first, parts[at + 1].last)] if at + 1 < len(parts) else []),
        ]
    return [_leg(course, part) for part in parts]


class _Part(NamedTuple):
    first: int
    last: int
    work: float
    rate: FloatArray
    loss: float


class _Merge:
    """Puts pieces first..last together; the loss is the share of the course's cost, summed over the prices."""

    def __init__(self, course: Course, prices: FloatArray, costs: FloatArray) -> None:
        self._course = course
        self._due = 1.0 + prices[:, None] * course.gpus
        self._spent = costs * course.work
        self._weights = costs[_WEIGHTS]

    def part(self, first: int, last: int) -> _Part:
        weights = self._weights[first:last]
        rate = (weights[:, None] * self._course.rate[first:last]).max(axis=0)
        work = float(weights @ self._course.work[first:last])
        with np.errstate(divide="ignore"):
            merged = (self._due / rate).min(axis=1) * work
        lost = self._spent[:, first:last].sum(axis=1) - merged
        return _Part(first, last, work, rate, float((lost / self._spent.sum(axis=1)).sum()))


def _leg(course: Course, part: _Part) -> Leg:
    kept = np.concatenate(
        [hull(course.gpus, part.rate, np.nonzero(course.kind == kind)[0]) for kind in np.unique(course.kind)]
    )
    return Leg(part.work, course.gpus[kept], course.kind[kept], part.rate[kept])


def hull(gpus: FloatArray, rate: FloatArray, among: IntArray) -> IntArray:
    """Returns those of the options ``among`` that are on the concave hull over (0, 0), in order of GPUs."""
    kept: list[int] = []
    for at in among[np.lexsort((-rate[among], gpus[among]))].tolist():
        x, y = float(gpus[at]), float(rate[at])
        if y <= (rate[kept[-1]] if kept else 0.0):
            continue
        while kept:
            last = kept[-1]
            before = (gpus[kept[-2]], rate[kept[-2]]) if len(kept) > 1 else (0.0, 0.0)
            if (rate[last] - before[1]) * (x - gpus[last]) > (y - rate[last]) * (gpus[last] - before[0]):
                break
            kept.pop()
        kept.append(at)
    return np.array(kept, dtype=np.int_)


#: Worths tried are those at which the best option earns so many seconds per second.
_SLOPES = np.array([0.02, 0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 6.0, 30.0])
#: Worths nearer to each other than this share are tried once.
_SAME = 0.004


class Priced(NamedTuple):
    """A leg under prices: by worth tried (rows) and slot (columns)."""

    leg: Leg
    worth: FloatArray
    #: The option with the highest m rate - price GPUs; -1: none is worth its price.
    option: npt.NDArray[np.int16]
    #: Integral of h(m) from the beginning to the start of every slot, and to the end of the last.
    earned: FloatArray
    #: m work - earned + K at the better end of a slot; the last column: after all slots.
    ahead: FloatArray


class Line(NamedTuple):
    """A cost from below, on every slot the line between its values at the slot's start and end."""

    start: FloatArray
    end: FloatArray

    def at(self, times: FloatArray, moments: FloatArray) -> FloatArray:
        """Its values at moments within the slots."""
        slot = np.searchsorted(times, moments, side="right") - 1
        part = (moments - times[slot]) / (times[slot + 1] - times[slot])
        return np.asarray(self.start[slot] * (1.0 - part) + self.end[slot] * part)


def price_legs(
    legs: Sequence[Leg], times: FloatArray, prices: FloatArray, *, detail: int
) -> tuple[Line, list[Priced]]:
    """Returns the least cost (finish time + price of GPUs) by the moment a job may begin, and the priced legs behind it.

    Args:
        legs: Legs of the job, in order.
        times: Ends of the time slots, and the start of the first.
        prices: Price of a GPU-second, by GPU type and slot.
        detail: Number of different prices from which the worths to try are taken.
    """
    line, alone_s = Line(times[:-1], times[1:]), 0.0
    priced: list[Priced] = []
    for leg in reversed(legs):
        priced.append(_price(leg, times, prices, line, alone_s, detail))
        line = _least(priced[-1], line)
        alone_s += leg.work / float(leg.rate.max())
    return line, priced[::-1]


def _price(
    leg: Leg, times: FloatArray, prices: FloatArray, line: Line, alone_s: float, detail: int
) -> Priced:
    due = leg.gpus[:, None] * prices[leg.kind]
    worth = _worths(leg, due, detail)
    best = np.zeros((len(worth), len(times) - 1))
    option = np.full(best.shape, -1, dtype=np.int16)
    for at, rate in enumerate(leg.rate):
        profit = (worth * rate)[:, None] - due[at]
        option[profit > best] = at
        np.maximum(best, profit, out=best)
    earned = np.zeros((len(worth), len(times)))
    np.cumsum(best * np.diff(times), axis=1, out=earned[:, 1:])
    ahead = np.empty(earned.shape)
    ahead[:, :-1] = np.minimum(line.start - earned[:, :-1], line.end - earned[:, 1:])
    # after the last slot J(u) = u + seconds alone: least at once, unless m earns more than a second per second
    ahead[:, -1] = np.where(
        worth * leg.rate.max() <= 1.0 + 1e-12, times[-1] + alone_s - earned[:, -1], -np.inf
    )
    ahead += (worth * leg.work)[:, None]
    return Priced(leg, worth, option, earned, ahead)


def _worths(leg: Leg, due: FloatArray, detail: int) -> FloatArray:
    """Worths at which the best option earns one of ``_SLOPES`` at one of the prices, or where GPUs are free."""
    slots = due.shape[1]
    ranks = np.linspace(0, slots - 1, min(detail, slots)).round().astype(int)
    dues = np.concatenate([np.zeros((len(due), 1)), due[:, np.argsort(due.min(axis=0))[ranks]]], axis=1)
    found = np.sort(((_SLOPES[:, None, None] + dues.T) / leg.rate).min(axis=2).ravel())
    apart = np.concatenate([[True], np.diff(np.log(found)) > _SAME])
    worths: FloatArray = np.unique(np.append(found[apart], 1.0 / leg.rate.max()))
    return worths


def _least(priced: Priced, line: Line) -> Line:
    """(2) as a line on every slot."""
    start, end = priced.earned[:, :-1], priced.earned[:, 1:]
    here = start + priced.ahead[:, :-1]
    # begun at the end of a slot and ended in it: at once
    at_once = (priced.worth * priced.leg.work)[:, None] + line.end
    # nothing can end before K: pairs of slots where K is above what was found need not be looked at
    lowest = np.minimum.accumulate(line.start[::-1])[::-1]

    def over_ends(begun: FloatArray, same_slot: FloatArray, enough: FloatArray | None) -> FloatArray:
        """Min over the slot of u of the max over the worths, by the slot of t."""
        best: FloatArray = np.minimum(same_slot.max(axis=0), (begun + priced.ahead[:, -1:]).max(axis=0))
        count = len(best)
        for later in range(1, count):
            limit = (best if enough is None else enough)[: count - later]
            if (lowest[later:] >= limit).all():
                break
            found = (begun[:, : count - later] + priced.ahead[:, later:-1]).max(axis=0)
            np.minimum(best[: count - later], found, out=best[: count - later])
        return best

    first, last = over_ends(start, here, None), over_ends(end, at_once, None)
    # one worth for both ends of t's slot: by how much the better of them must give way, at most
    both = np.minimum(start - first, end - last)
    slack = over_ends(both, np.minimum(here - first, at_once - last), np.maximum(first, last))
    slack = np.minimum(slack, 0.0)
    # beginning later never costs less, so the line may be raised to be level
    return Line(first + slack, np.maximum(first, last) + slack)


class Plan(NamedTuple):
    """When a job ends, and its GPU-seconds by GPU type and slot."""

    ends_at: float
    gpu_s: FloatArray


def plan(priced: Sequence[Priced], times: FloatArray, kinds: int, begins_at: float) -> Plan:
    """Makes a plan for one job.

    Args:
        priced: Legs of the job under prices, in order.
        times: Ends of the time slots, and the start of the first.
        kinds: Number of GPU types.
        begins_at: When the job may begin.
    """
    made = _Making(times, np.zeros((kinds, len(times) - 1)), begins_at)
    for stage in priced:
        made.go_through(stage)
    return Plan(made.at, made.gpu_s)


@dataclass(slots=True)
class _Making:
    times: FloatArray
    gpu_s: FloatArray
    at: float

    def go_through(self, stage: Priced) -> None:
        """One leg, begun now."""
        leg, slots = stage.leg, len(self.times) - 1
        if self.at >= self.times[-1]:
            self._hurry(leg, 1.0)
            return
        first = int(np.searchsorted(self.times, self.at, side="right")) - 1
        row, ends = self._choose(stage, first)
        last = min(ends, slots - 1)
        spans = np.diff(self.times[first : last + 2])
        spans[0] = self.times[first + 1] - self.at
        option = stage.option[:, first : last + 1]
        rate = np.append(leg.rate, 0.0)[option]
        done = rate @ spans
        if ends == slots and done[row] <= leg.work:
            self._use(leg, option[row], first, spans)
            self.at = float(self.times[-1])
            self._hurry(leg, 1.0 - float(done[row]) / leg.work)
            return
        if done[row] > leg.work and rate[row, -1] > 0:
            # it ends within the last slot, or at its start
            before = done[row] - rate[row, -1] * spans[-1]
            spans[-1] = max(leg.work - before, 0.0) / rate[row, -1]
            done = rate @ spans
        self._mix(leg, option, first, spans, done)

    def _choose(self, stage: Priced, first: int) -> tuple[int, int]:
        """The worth, and the slot it ends in, that cost least from now."""
        part = (self.at - self.times[first]) / (self.times[first + 1] - self.times[first])
        earned = stage.earned[:, first] * (1.0 - part) + stage.earned[:, first + 1] * part
        costs = earned[:, None] + stage.ahead[:, first:]
        rows = costs.argmax(axis=0)
        ends = int(costs[rows, np.arange(len(rows))].argmin())
        return int(rows[ends]), first + ends

    def _mix(
        self, leg: Leg, option: npt.NDArray[np.int16], first: int, spans: FloatArray, done: FloatArray
    ) -> None:
        """Rows are in order of worth, so more and more is done: two neighbours mixed do the very work of the leg."""
        high = int(np.searchsorted(done, leg.work * (1.0 - 1e-12)))
        if high == len(done):
            self._use(leg, option[-1], first, spans)
            self.at += float(spans.sum())
            self._hurry(leg, 1.0 - float(done[-1]) / leg.work)
            return
        less = float(done[high - 1]) if high else 0.0
        share = min((leg.work - less) / (float(done[high]) - less), 1.0)
        self._use(leg, option[high], first, spans * share)
        if high:
            self._use(leg, option[high - 1], first, spans * (1.0 - share))
        self.at += float(spans.sum())

    def _hurry(self, leg: Leg, share: float) -> None:
        """A share of the leg as fast as it goes; after the last slot nobody counts GPUs."""
        fastest = int(leg.rate.argmax())
        left_s = share * leg.work / float(leg.rate[fastest])
        while left_s > 0 and self.at < self.times[-1]:
            slot = int(np.searchsorted(self.times, self.at, side="right")) - 1
            span_s = min(left_s, float(self.times[slot + 1]) - self.at)
            self.gpu_s[leg.kind[fastest], slot] += leg.gpus[fastest] * span_s
            left_s -= span_s
            self.at = float(self.times[slot + 1]) if left_s > 0 else self.at + span_s
        self.at += left_s

    def _use(self, leg: Leg, option: npt.NDArray[np.int16], first: int, seconds: FloatArray) -> None:
        busy = option >= 0
        slots = np.arange(first, first + len(seconds))[busy]
        chosen = option[busy]
        np.add.at(self.gpu_s, (leg.kind[chosen], slots), leg.gpus[chosen] * seconds[busy])
