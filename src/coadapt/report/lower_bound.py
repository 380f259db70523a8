"""A certified lower bound on the average JCT that any schedule can reach, and how loose it may be itself.

The world is relaxed so that every real schedule remains possible and none becomes slower:

1. A job begins to train no earlier than its first possible decision plus the cost of one start (``begins_at``), and
   pays for no other change; while it starts it holds nothing.
2. It trains at the best rate there is for its GPUs in each piece of its work, whatever the placement and batch size.
3. GPUs can be divided in time and number: a rate between two options is their mix, so rates are concave.
4. Jobs share nothing but the number of GPUs of each type, slot of time by slot of time: within a slot it is enough that
   the GPU time fits. Coarser slots only relax more, and after the last one GPUs are not counted.

In that world the sum of completion times is bounded by Lagrangian duality: at any prices of GPUs a schedule's sum is at
least what each job costs alone at these prices, less the price of all GPUs (``_bound_lp``, the prices by a
time-indexed LP); what a job costs alone is bounded by LP duality again, in continuous time (``_bound_job``). Both hold for any
multipliers, so the value is recomputed from them in plain arithmetic, less a margin for rounding, and does not rest on the
solver. Two simpler bounds are taken where they are higher: every job alone on the whole cluster, and shortest
remaining GPU time first on one machine as fast as the cluster.

How loose: a list schedule of the relaxed world (``_bound_schedule``) is a bound on its optimum from above. See
docs/design/0010-lower-bound.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.report._bound_legs import Course, FloatArray, legs_of
from coadapt.report._bound_lp import Relaxed, Search
from coadapt.report._bound_schedule import Listed, list_schedule, shortest_first
from coadapt.units import format_duration

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
    """The bound for jobs on ``capacity`` GPUs of each type.

    ``times``: the ends of slots, by default ``slots`` of them, shorter where more jobs are active. ``on_round`` is
    told how many of how many steps are done.
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
    """What the bound says about the best run, for people."""
    return (
        f"No schedule can bring the average JCT of these {bound.jobs:,} jobs below {format_duration(bound.avg_jct_s)}: "
        f"a certified lower bound, for a world in which changes after the first start are free, every placement is the best "
        f"one and all is known in advance. {name} takes {avg_jct_s / bound.avg_jct_s:.2f} times as long. At most "
        f"{bound.loose_share(avg_jct_s):.0%} of that distance may be the bound's own looseness; the rest is what that world "
        f"leaves out, and what the policy could do better."
    )
