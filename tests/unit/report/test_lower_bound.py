"""The lower bound against optima that are known, schedules that are possible, and itself on other grids."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.report import BoundJob, Course, LowerBound, bound_sentence
from coadapt.report.lower_bound import list_schedule, lower_bound, shortest_first
from coadapt.report.lower_bound_jobs import FloatArray, hull, legs_of, plan, price_legs

#: A search that is short, for tests.
QUICK = {"slots": 16, "rounds": 8}


def a_course(*pieces: tuple[float, dict[int, float]]) -> Course:
    """Pieces of work with their rates by GPUs, of one type."""
    sizes = sorted({gpus for _, rates in pieces for gpus in rates})
    return Course(
        np.array([work for work, _ in pieces]),
        np.array(sizes, dtype=np.float64),
        np.zeros(len(sizes), dtype=np.int_),
        np.array([[rates.get(gpus, 0.0) for gpus in sizes] for _, rates in pieces]),
    )


def rigid(seconds: float, gpus: int = 1) -> Course:
    return a_course((seconds, {gpus: 1.0}))


def at_once(*courses: Course, gpus: float = 1.0, **options: object) -> LowerBound:
    jobs = [BoundJob(0.0, 0.0, number) for number in range(len(courses))]
    return lower_bound(jobs, courses, [gpus], **(QUICK | options))  # type: ignore[arg-type]


@st.composite
def courses(draw: st.DrawFn, pieces: int = 3, sizes: int = 4) -> Course:
    """Up to so many pieces on 1, 2, 3 .. GPUs, rates in any order, also where more GPUs are slower."""
    size = draw(st.integers(1, sizes))
    rate = st.floats(0.2, 5.0)
    return a_course(
        *(
            (draw(st.floats(1.0, 100.0)), {gpus: draw(rate) for gpus in range(1, size + 1)})
            for _ in range(draw(st.integers(1, pieces)))
        )
    )


# -- optima that are known ---------------------------------------------------------------------------------


def test_a_job_alone_takes_its_fastest_options_and_its_wait() -> None:
    course = a_course((100.0, {1: 1.0, 4: 2.0}), (60.0, {1: 1.0, 2: 3.0, 4: 2.5}))
    found = lower_bound([BoundJob(10.0, 45.0, 0)], [course], [4.0], **QUICK)
    assert found.avg_jct_s == pytest.approx(35.0 + 50.0 + 20.0, rel=1e-6)
    assert found.lp_s == pytest.approx(found.avg_jct_s, rel=1e-6)
    assert found.relaxed_s == pytest.approx(found.avg_jct_s, rel=1e-6)
    assert found.gap == pytest.approx(0.0, abs=1e-6)


def test_identical_rigid_jobs_on_one_gpu_are_bounded_by_the_very_optimum() -> None:
    found = at_once(*[rigid(10.0)] * 5, times=np.arange(0.0, 51.0, 10.0), rounds=40)
    assert found.lp_s == pytest.approx(30.0, rel=0.01)  # (10 + 20 + 30 + 40 + 50) / 5
    assert found.avg_jct_s == pytest.approx(30.0, rel=1e-6)
    assert found.relaxed_s == pytest.approx(30.0, rel=1e-6)


def test_jobs_that_fill_the_cluster_are_bounded_by_shortest_first() -> None:
    found = at_once(rigid(30.0, 4), rigid(10.0, 4), rigid(20.0, 4), gpus=4.0)
    assert found.avg_jct_s == pytest.approx((10 + 30 + 60) / 3, rel=1e-6)


def test_jobs_with_room_for_all_are_bounded_by_each_alone() -> None:
    found = at_once(rigid(30.0), rigid(10.0), gpus=2.0)
    assert found.avg_jct_s == pytest.approx(20.0, rel=1e-6)


def test_the_lp_sees_what_neither_simple_bound_does() -> None:
    # two long jobs that scale to 2 of 2 GPUs badly: alone 50, as one machine (100 + 200) / 2 / 2, really 100 on one each
    course = a_course((100.0, {1: 1.0, 2: 1.2}))
    found = at_once(course, course, course, course, gpus=2.0, slots=40, rounds=30)
    assert found.lp_s > 1.1 * max(found.alone_s, found.shortest_first_s)


def test_shortest_first_is_the_best_order_there_is() -> None:
    begins, spent = np.array([0.0, 1.0, 2.0, 2.0]), np.array([4.0, 1.0, 3.0, 0.5])
    assert shortest_first(np.zeros(4), spent) == min(
        sum(np.cumsum(spent[list(order)])) for order in permutations(range(4))
    )
    # by hand: 0-1 first, 1-2 second, 2-2.5 fourth, 2.5-5.5 first (3 left, tie with third), 5.5-8.5 third
    assert shortest_first(begins, spent) == pytest.approx(5.5 + 1.0 + 6.5 + 0.5)


# -- schedules that are possible -----------------------------------------------------------------------------


def optimum(works: tuple[int, ...], rates: dict[int, int], gpus: int) -> float:
    """The least sum of ends with decisions at whole seconds, by trying everything."""

    @cache
    def least(left: tuple[int, ...]) -> float:
        active = [at for at, work in enumerate(left) if work > 0]
        if not active:
            return 0.0
        best = float("inf")
        for sizes in product((0, *rates), repeat=len(active)):
            if 0 < sum(sizes) <= gpus:
                after = list(left)
                for at, size in zip(active, sizes, strict=True):
                    after[at] = max(after[at] - rates.get(size, 0), 0)
                best = min(best, len(active) + least(tuple(after)))
        return best

    return least(works)


@settings(max_examples=15, deadline=None)
@given(
    works=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    double=st.integers(2, 4),
    gpus=st.integers(1, 3),
)
def test_bound_is_not_above_the_optimum_found_by_trying_everything(
    works: list[int], double: int, gpus: int
) -> None:
    rates = {1: 2, 2: double}
    rates = {size: rate for size, rate in rates.items() if size <= gpus}
    found = at_once(
        *(a_course((float(work), {k: float(v) for k, v in rates.items()})) for work in works),
        gpus=float(gpus),
    )
    assert found.avg_jct_s <= optimum(tuple(works), rates, gpus) / len(works) + 1e-9
    assert found.avg_jct_s <= found.relaxed_s + 1e-9


@settings(max_examples=60, deadline=None)
@given(data=st.data(), course=courses(), most=st.integers(1, 3), detail=st.integers(1, 6))
def test_no_plan_costs_less_than_a_job_is_said_to_cost(
    data: st.DataObject, course: Course, most: int, detail: int
) -> None:
    spans = data.draw(st.lists(st.floats(1.0, 60.0), min_size=1, max_size=6))
    times = np.cumsum([0.0, *spans])
    prices = np.array([[data.draw(st.one_of(st.just(0.0), st.floats(0.0, 3.0))) for _ in spans]])
    begins = data.draw(st.floats(0.0, float(times[-1]) * 0.999))
    line, priced = price_legs(legs_of(course, most), times, prices, detail=detail)
    least = float(line.at(times, np.array([begins]))[0])
    at, cost = begins, 0.0
    for number, work in enumerate(course.work):
        left = float(work)
        while left > 1e-9:
            option = data.draw(st.integers(-1, len(course.gpus) - 1))
            rate = 0.0 if option < 0 else float(course.rate[number, option])
            span = data.draw(st.floats(5.0, 80.0))
            span = min(span, left / rate) if rate else span
            if option >= 0:
                cost += float(course.gpus[option]) * paid(times, prices[0], at, at + span)
            at, left = at + span, left - rate * span
    assert least <= at + cost + 1e-6
    # the plan that the search makes is possible as well, in the world of legs
    made = plan(priced, times, 1, begins)
    assert least <= made.ends_at + float((made.gpu_s * prices).sum()) + 1e-6
    assert (made.gpu_s <= course.gpus.max() * np.diff(times) * (1 + 1e-9)).all()


def paid(times: FloatArray, prices: FloatArray, start: float, end: float) -> float:
    """The integral of the price; 0 after the last slot."""
    inside = np.minimum(np.maximum(times, start), end)
    return float((np.diff(inside) * prices).sum())


def test_cost_of_a_job_at_a_constant_price_is_exact() -> None:
    course = a_course((100.0, {1: 1.0, 2: 1.8, 4: 3.0}), (50.0, {1: 1.0, 2: 1.1, 4: 1.2}))
    times, price = np.linspace(0.0, 1000.0, 21), 0.5
    line, _ = price_legs(legs_of(course, 2), times, np.full((1, 20), price), detail=4)
    exact = 100 * min((1 + price * k) / s for k, s in ((1, 1.0), (2, 1.8), (4, 3.0)))
    exact += 50 * min((1 + price * k) / s for k, s in ((1, 1.0), (2, 1.1), (4, 1.2)))
    assert line.at(times, np.array([0.0, 33.0])) == pytest.approx([exact, 33.0 + exact], rel=1e-6)


def test_a_job_waits_where_gpus_get_cheaper() -> None:
    times = np.array([0.0, 100.0, 200.0])
    line, priced = price_legs(legs_of(rigid(50.0), 1), times, np.array([[10.0, 1.0]]), detail=2)
    # all in the second slot: it ends at 150, and 50 GPU-seconds cost 50
    assert line.start[0] == pytest.approx(200.0, rel=1e-3)
    made = plan(priced, times, 1, 0.0)
    assert made.ends_at == pytest.approx(150.0)
    assert made.gpu_s[0] == pytest.approx([0.0, 50.0])


def test_a_job_may_wait_for_many_slots() -> None:
    times = np.arange(0.0, 1001.0, 50.0)
    prices = np.where(times[:-1] < 750.0, 100.0, 0.1)[None]
    line, _ = price_legs(legs_of(rigid(50.0), 1), times, prices, detail=2)
    assert line.start[0] <= 750.0 + 50.0 + 5.0 + 1e-6
    assert line.start[0] == pytest.approx(805.0, rel=0.01)


# -- the parts -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(course=courses(pieces=6), most=st.integers(1, 6), price=st.floats(0.0, 5.0))
def test_legs_never_cost_more_than_their_pieces(course: Course, most: int, price: float) -> None:
    legs = legs_of(course, most)
    pieces = (course.work * ((1 + price * course.gpus) / course.rate).min(axis=1)).sum()
    merged = sum(leg.work * ((1 + price * leg.gpus) / leg.rate).min() for leg in legs)
    assert len(legs) <= most
    assert merged <= pieces * (1 + 1e-9)
    if most >= len(course.work):
        assert merged == pytest.approx(pieces, rel=2e-3)


def test_pieces_that_are_alike_become_one_leg_without_loss() -> None:
    course = a_course(*[(10.0, {1: 1.0, 2: 1.5})] * 5, (4.0, {1: 2.0, 2: 3.0}))
    (leg,) = legs_of(course, 6)
    assert leg.work / leg.rate.max() == pytest.approx(course.alone_s)


def test_hull_keeps_what_a_mix_cannot_reach() -> None:
    gpus, rate = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.0, 1.2, 2.6, 3.0, 2.9])
    assert hull(gpus, rate, np.arange(5)).tolist() == [0, 2, 3]


def test_list_schedule_uses_no_more_gpus_than_there_are_and_ends_every_job() -> None:
    course = a_course((100.0, {1: 1.0, 4: 4.0}))
    listed = list_schedule(
        np.zeros(3), np.zeros(3, dtype=int), [course], np.array([4.0]), price=1.0, power=1.0
    )
    # linear speed-up: 4 GPU-seconds a second are 300 GPU-seconds of work in 75 s, never less
    assert listed.ends_at.max() == pytest.approx(75.0)
    assert listed.active[-1] == (pytest.approx(75.0), 0)


# -- itself ------------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(some=st.lists(courses(), min_size=1, max_size=4), gpus=st.integers(1, 4), data=st.data())
def test_more_gpus_never_raise_the_bound_and_it_is_below_the_list(
    some: list[Course], gpus: int, data: st.DataObject
) -> None:
    begins = [data.draw(st.floats(0.0, 100.0)) for _ in some]
    jobs = [BoundJob(at, at, number) for number, at in enumerate(begins)]
    # options on more GPUs than there are cannot be chosen
    small = lower_bound(jobs, [only(course, gpus) for course in some], [float(gpus)], **QUICK)
    large = lower_bound(jobs, [only(course, gpus) for course in some], [2.0 * gpus], **QUICK)
    assert large.avg_jct_s <= small.relaxed_s + 1e-9
    assert large.avg_jct_s <= small.avg_jct_s * 1.02
    for found in (small, large):
        assert max(found.alone_s, found.shortest_first_s, found.lp_s) == found.avg_jct_s
        assert found.avg_jct_s <= found.relaxed_s * (1 + 1e-9)


def only(course: Course, gpus: int) -> Course:
    fits = course.gpus <= gpus
    return Course(course.work, course.gpus[fits], course.kind[fits], course.rate[:, fits])


def test_finer_slots_do_not_lower_the_bound() -> None:
    course = a_course((60.0, {1: 1.0, 2: 1.6, 4: 2.4}), (30.0, {1: 1.0, 4: 3.5}))
    jobs = [BoundJob(at, at, 0) for at in (0.0, 0.0, 10.0, 25.0, 40.0, 60.0)]
    values = [
        lower_bound(jobs, [course], [4.0], times=np.linspace(0.0, 240.0, 3 * 2**finer + 1), rounds=30).lp_s
        for finer in range(4)
    ]
    assert all(after >= before * 0.995 for before, after in pairwise(values))
    assert values[-1] > values[0] * 1.02


def test_types_are_scarce_one_by_one() -> None:
    fast = Course(
        np.array([100.0]), np.array([1.0, 1.0]), np.array([0, 1]), np.array([[1.0, 4.0]])
    )  # four times as fast on the second type
    jobs = [BoundJob(0.0, 0.0, 0)] * 4
    one_fast = lower_bound(jobs, [fast], [4.0, 1.0], slots=32, rounds=24)
    all_fast = lower_bound(jobs, [fast], [4.0, 4.0], slots=32, rounds=24)
    assert all_fast.avg_jct_s == pytest.approx(25.0, rel=1e-6)
    # at best 25, 50 and 75 on the fast one, and the last begun at once on a slow one is at 100; or moved over at 75
    assert 25.0 * 1.3 < one_fast.avg_jct_s <= (25.0 + 50.0 + 75.0 + 82.0) / 4


def test_bound_says_what_it_cannot_take() -> None:
    with pytest.raises(InputError, match="at least one job"):
        lower_bound([], [rigid(1.0)], [1.0])
    with pytest.raises(InputError, match="1,001 jobs are too many"):
        lower_bound([BoundJob(0.0, 0.0, 0)] * 1001, [rigid(1.0)], [1.0])
    with pytest.raises(InputError, match="course 0 needs pieces"):
        at_once(a_course((1.0, {1: 0.0})))
    with pytest.raises(InputError, match="at least one GPU"):
        at_once(rigid(1.0), gpus=0.0)


def test_sentence_tells_how_much_of_the_distance_may_be_the_bounds_own() -> None:
    bound = LowerBound(
        jobs=3, avg_jct_s=100.0, lp_s=100.0, alone_s=50.0, shortest_first_s=40.0, relaxed_s=110.0
    )
    assert "pollux takes 1.50 times as long. At most 20% of that" in bound_sentence(bound, "pollux", 150.0)
    assert bound.loose_share(105.0) == 1.0
    assert bound.gap == pytest.approx(0.1)
