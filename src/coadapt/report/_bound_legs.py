"""What a job has to get through, piece by piece, and the same in fewer pieces.

A job is a sequence of pieces (epochs of work), each with the rate of work of every option: so many GPUs of a type.
Adjacent pieces are put together into a leg. With any weights v > 0 on the work of pieces e, no schedule does the
weighted work of the leg faster than

    rate(option) = max over e of  v_e rate_e(option)          work = sum over e of  v_e work_e

so a leg in the place of its pieces can only make a job quicker: lower bounds stay lower bounds. The weights

    v_e = min over options of  (1 + p GPUs) / rate_e          p: a price of a GPU against a second

make all pieces cost the same at that price, and pieces that are much alike lose next to nothing at others. Which
neighbours are put together is chosen by the loss over several prices, smallest first.
"""

from __future__ import annotations

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
        """Seconds of training if it had the whole cluster."""
        return float((self.work / self.rate.max(axis=1)).sum())

    def gpu_s(self, weights: FloatArray) -> float:
        """The least GPU time it can take, GPUs of each type weighted."""
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
    """At most ``most`` legs in the place of the course's pieces."""
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
    """Those of the options ``among`` that are on the concave hull over (0, 0), in order of GPUs."""
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
