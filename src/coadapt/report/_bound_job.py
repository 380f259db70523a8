"""One job under prices of GPUs: the least that its finish time and its GPUs together can cost, from below.

Prices are constant within a slot of time. With h(m) = max over options of (m rate - price GPUs), at least 0, a leg
done between t and u costs at least

    m work - integral from t to u of h(m),        whatever m >= 0, the worth of a unit of work            (1)

for work = integral of rate and price GPUs >= m rate - h(m) at every moment. Best of all m it is exact (LP duality). So
the least cost J of a job that may begin the leg at t, K that of beginning the next leg (after the last: K(u) = u), is

    J(t) >= min over u >= t of  max over m of  [ m work - integral of h(m) + K(u) ].                      (2)

Nothing in this is rounded: times are continuous. J is kept from below as a line on every slot. By induction K is such a
line, then for u within one slot and one m (2) is a line in u, least at an end of the slot, and a line in t for t
within one slot. Choosing one m for each pair of slots gives one line in t for each slot of u; their minimum is concave and
lies above the line through its values at the ends of the slot: this is the line that is kept. For u = t's own slot the
same holds with u >= t. After the last slot GPUs cost nothing. Any choice of m makes a valid line, so the few m that are
tried, and which is taken, decide how tight the bound is and never whether it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.report._bound_legs import FloatArray, Leg

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
    """The least cost (finish time + price of GPUs) by the moment a job may begin, and what it follows from.

    ``prices`` by GPU type and slot; ``detail``: how many different prices the worths tried are taken from.
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
