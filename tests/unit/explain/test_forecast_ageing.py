"""Forecasts some time later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.explain.job_progress import TimeLeft
from coadapt.model.interval import Interval

SAID = Interval(value=1000.0, low=500.0, high=2000.0)


def test_what_was_just_said_is_said_again() -> None:
    now = TimeLeft(SAID, 0.0).interval
    assert (now.value, now.low, now.high) == (pytest.approx(1000), pytest.approx(500), pytest.approx(2000))


def test_chance_of_taking_longer_follows_the_interval() -> None:
    left = TimeLeft(SAID, 0.0)
    assert left.longer_than(500.0) == pytest.approx(0.9)
    assert left.longer_than(1000.0) == pytest.approx(0.5)
    assert left.longer_than(2000.0) == pytest.approx(0.1)
    assert left.longer_than(0.0) == 1.0


def test_job_that_is_late_by_all_that_was_said_is_not_about_to_end_at_once() -> None:
    late = TimeLeft(SAID, 100_000.0).interval
    assert late.value > 1000.0
    assert late.high is not None
    assert late.low < late.value < late.high < 100_000.0


def test_open_end_stays_open() -> None:
    left = TimeLeft(Interval(value=100.0, low=50.0), 10.0)
    assert left.interval.high is None
    assert left.longer_than(1000.0) > 0.2


@given(
    st.floats(1.0, 1e6),
    st.floats(0.01, 1.0),
    st.floats(1.0, 50.0),
    st.floats(0.0, 1e7),
    st.floats(0.0, 1e6),
)
def test_end_is_in_the_future_and_known_later_the_later_it_gets(
    value: float, below: float, above: float, elapsed_s: float, more_s: float
) -> None:
    said = Interval(value=value, low=value * below, high=value * above)
    left, later = TimeLeft(said, elapsed_s), TimeLeft(said, elapsed_s + more_s)
    now = left.interval
    assert now.high is not None
    assert 0 <= now.low <= now.value <= now.high
    # that it has not ended by then cannot bring its end forward
    assert later.quantile(0.5) + more_s >= left.quantile(0.5) * (1 - 1e-6)
    assert 0 <= later.longer_than(10.0) <= 1
