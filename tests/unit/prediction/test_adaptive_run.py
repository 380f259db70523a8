from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.model import Configuration, Measurement
from coadapt.prediction.remaining.adaptive_run import MAX_STRETCHES, observe, resume, start

ONE = Configuration(nodes=1, replicas=1, atomic_batch=64)
FOUR = Configuration(nodes=1, replicas=4, atomic_batch=64)


def a_report(work: float | None, config: Configuration = ONE) -> Measurement:
    return Measurement(config=config, step_s=0.1, sync_s=0.0, grad_sqr=1.0, grad_var=4.0, work=work)


def test_a_stretch_lies_between_two_reports_in_one_place() -> None:
    run = observe(observe(start(64), 0.0, a_report(0.0)), 10.0, a_report(640.0))
    (stretch,) = run.stretches
    assert (stretch.done, stretch.around, stretch.seconds) == (640.0, 320.0, 10.0)
    assert run.config == ONE


def test_the_stretch_with_a_change_in_it_is_nobodys() -> None:
    run = observe(observe(start(64), 0.0, a_report(0.0)), 10.0, a_report(640.0))
    run = observe(resume(run, 45.0), 60.0, a_report(1000.0, FOUR))
    assert len(run.stretches) == 1
    run = observe(run, 70.0, a_report(2000.0, FOUR))
    assert [each.config for each in run.stretches] == [ONE, FOUR]
    assert run.stretches[-1].seconds == 10.0


def test_a_change_that_nobody_told_is_seen_by_its_place() -> None:
    run = observe(observe(start(64), 0.0, a_report(0.0)), 10.0, a_report(640.0, FOUR))
    assert run.stretches == ()


def test_another_batch_size_in_the_same_place_is_no_change() -> None:
    larger = Configuration(nodes=1, replicas=1, atomic_batch=128)
    run = observe(observe(start(64), 0.0, a_report(0.0)), 10.0, a_report(640.0, larger))
    assert [each.config for each in run.stretches] == [larger]


def test_a_report_without_progress_leaves_its_time_to_the_next() -> None:
    run = start(64)
    for at, work in ((0.0, 0.0), (10.0, 0.0), (30.0, 64.0)):
        run = observe(run, at, a_report(work))
    assert [each.seconds for each in run.stretches] == [30.0]


def test_work_that_goes_back_makes_no_stretch_and_counts_anew() -> None:
    run = start(64)
    for at, work in ((0.0, 0.0), (10.0, 640.0), (20.0, 100.0), (30.0, 740.0)):
        run = observe(run, at, a_report(work))
    assert [each.done for each in run.stretches] == [640.0, 640.0]


@pytest.mark.parametrize("work", [None, math.nan, math.inf, -1.0])
def test_a_report_without_work_tells_steps_only(work: float | None) -> None:
    run = observe(start(64), 5.0, a_report(work))
    assert (run.at, run.config, run.stretches) == (None, None, ())
    assert len(run.table.rows) == 1


@pytest.mark.parametrize("at", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(at: float) -> None:
    with pytest.raises(InputError):
        observe(start(64), at, a_report(1.0))


@given(
    st.lists(
        st.tuples(st.floats(-100, 1000), st.floats(-100, 1e6), st.sampled_from([ONE, FOUR]), st.booleans()),
        max_size=100,
    )
)
def test_whatever_is_reported_stretches_are_forward_and_bounded(
    reports: list[tuple[float, float, Configuration, bool]],
) -> None:
    run = start(64)
    for at, work, config, changed in reports:
        run = observe(resume(run, at) if changed else run, at, a_report(work, config))
        assert all(each.done > 0 and each.seconds > 0 and each.around > 0 for each in run.stretches)
        assert len(run.stretches) <= MAX_STRETCHES
