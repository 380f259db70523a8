from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import (
    ClusterRestored,
    ControllerStarted,
    DecisionMade,
    Forecast,
    JobStopped,
    Node,
    NodeJoined,
    RetryRequested,
    Woke,
)
from coadapt.report import AGES, Said, age_of, calibrate, forecasts
from tests.unit.report.logs import Log, a_job_without_length, on


def said(
    left: float = 100.0,
    actual: float | None = 100.0,
    *,
    low: float = 50.0,
    high: float | None = 200.0,
    done: float | None = 0.5,
    method: str = "declared",
    stopped: bool = False,
) -> Said:
    return Said(
        left_s=left, low_s=low, high_s=high, method=method, done=done, actual_s=actual, stopped=stopped
    )


def forecast(log: Log, at: float, **left_s: float) -> None:
    """A decision at which so many seconds are foretold for each job."""
    made = {
        job: Forecast(left_s=left, low_s=left / 2, high_s=2 * left, method="declared", done=0.0)
        for job, left in left_s.items()
    }
    log.event(at, DecisionMade(decision=0, forecasts=made))


@pytest.mark.parametrize(
    ("done", "age"),
    [
        (-0.1, "0-10%"),
        (0.0, "0-10%"),
        (0.0999, "0-10%"),
        (0.1, "10-25%"),
        (0.25, "25-50%"),
        (0.5, "50-75%"),
        (0.75, "75-90%"),
        (0.9, "90-100%"),
        (1.0, "90-100%"),
        (1.5, "90-100%"),
        (math.nan, "unknown"),
        (None, "unknown"),
    ],
)
def test_age_is_the_share_done(done: float | None, age: str) -> None:
    assert age_of(done) == age


def test_forecasts_are_judged_by_the_end_of_their_job() -> None:
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=1))
    forecast(log, 10, a=80.0)
    forecast(log, 40, a=80.0)
    log.finish(90, "a")
    first, second = forecasts(log.records)
    assert (first.actual_s, second.actual_s) == (80.0, 50.0)
    assert (first.bias, second.bias) == (0.0, pytest.approx(0.6))
    assert first.within
    assert second.within
    row = calibrate([first, second]).total
    assert (row.judged, row.median_error, row.bias, row.within) == (
        2,
        pytest.approx(0.3),
        pytest.approx(0.3),
        1,
    )


def test_forecast_of_a_job_that_has_not_ended_is_pending_and_not_dropped() -> None:
    log = Log()
    for job in ("ended", "runs", "waits"):
        log.submit(0, job)
    log.start(0, "ended", on(n0=1))
    log.start(0, "runs", on(n0=1))
    forecast(log, 10, ended=10.0, runs=10.0, waits=10.0, unheard=10.0)
    log.finish(20, "ended")
    (row,) = calibrate(forecasts(log.records)).rows
    assert (row.judged, row.pending, row.stopped) == (1, 3, 0)


def test_job_that_failed_says_nothing_about_its_time_and_is_counted() -> None:
    log = Log()
    log.submit(0, "failed")
    log.submit(0, "cancelled")
    log.submit(0, "tries-again", a_job_without_length(retries=1))
    for job in ("failed", "cancelled", "tries-again"):
        log.start(0, job, on(n0=1))
    forecast(log, 10, **{"failed": 10.0, "cancelled": 10.0, "tries-again": 30.0})
    log.finish(20, "failed", "failed")
    log.cancel(21, "cancelled")
    log.event(22, JobStopped(job="cancelled", attempt=1, cause="cancelled"))
    log.finish(23, "tries-again", "failed")  # has a second try
    row = calibrate(forecasts(log.records)).total
    assert (row.judged, row.pending, row.stopped) == (0, 1, 2)
    log.start(24, "tries-again", on(n0=1))
    log.finish(40, "tries-again")
    row = calibrate(forecasts(log.records)).total
    assert (row.judged, row.pending, row.stopped, row.median_error) == (1, 0, 2, 0.0)


@pytest.mark.parametrize("heard", [105.0, 1001.0])
def test_time_in_which_the_cluster_was_shut_down_is_not_counted(heard: float) -> None:
    """'coadapt down' at 100, 'serve' at 1000; the controller heard of the stop before its end, or at its next start."""
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=1))
    forecast(log, 50, a=150.0)
    stop = JobStopped(job="a", attempt=1, cause="shutdown", ended_at=100.0 if heard > 1000 else None)
    if heard < 1000:
        log.event(100, stop)
    log.event(1000, ControllerStarted(version="x"))
    if heard > 1000:
        log.event(heard, stop)
    log.event(1010, ControllerStarted(version="x"))  # it was killed: jobs went on meanwhile
    log.start(1010, "a", on(n0=1))
    forecast(log, 1020, a=80.0)
    log.finish(1100, "a")
    assert [each.actual_s for each in forecasts(log.records)] == [150.0, 80.0]


def test_time_from_a_backup_to_its_restore_is_not_counted() -> None:
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=1))
    forecast(log, 50, a=100.0)
    log.event(60, Woke())
    log.event(5000, ClusterRestored(made_at=60.0))
    log.event(5000, NodeJoined(node=Node(name="n0", gpus=4)))
    log.start(5010, "a", on(n0=1))
    log.finish(5090, "a")
    (found,) = forecasts(log.records)
    assert found.actual_s == 100.0


def test_forecast_before_a_failure_is_stopped_also_if_the_job_is_retried() -> None:
    log = Log()
    log.submit(0, "a")
    log.start(0, "a", on(n0=1))
    forecast(log, 10, a=10.0)
    log.finish(20, "a", "failed")
    log.event(90_000, RetryRequested(job="a"))
    log.start(90_010, "a", on(n0=1))
    forecast(log, 90_020, a=30.0)
    log.finish(90_050, "a")
    first, second = forecasts(log.records)
    assert (first.actual_s, first.stopped) == (None, True)
    assert (second.actual_s, second.stopped) == (30.0, False)


def test_rows_are_by_method_and_age_with_a_sum_where_there_are_several() -> None:
    found = calibrate(
        [
            said(done=0.95, method="pool"),
            said(done=0.05, method="declared"),
            said(left=150.0, done=0.05, method="declared"),
            said(left=50.0, done=0.3, method="declared"),
            said(done=None, actual=None, method="declared"),
        ]
    )
    assert [(row.method, row.age, row.judged, row.pending) for row in found.rows] == [
        ("declared", "0-10%", 2, 0),
        ("declared", "25-50%", 1, 0),
        ("declared", "unknown", 0, 1),
        ("declared", "all", 3, 1),
        ("pool", "90-100%", 1, 0),
    ]
    assert [row.bias for row in found.rows] == [0.25, -0.5, None, 0.0, 0.0]
    assert [row.median_error for row in found.rows] == [0.25, 0.5, None, 0.5, 0.0]
    assert (found.total.method, found.total.age, found.total.judged) == ("all", "all", 4)


def test_interval_without_an_upper_end_holds_all_that_is_long_enough() -> None:
    assert said(actual=1e9, high=None).within
    assert not said(actual=49.0, high=None).within
    assert not said(actual=201.0).within
    assert said(actual=50.0).within
    assert said(actual=200.0).within


def test_nothing_left_to_come_is_an_infinite_error_unless_it_was_said() -> None:
    assert said(left=5.0, actual=0.0).bias == math.inf
    assert said(left=0.0, actual=0.0).bias == 0.0
    assert calibrate([said(left=5.0, actual=0.0)]).total.median_error == math.inf


@pytest.mark.parametrize(
    ("inside", "outside", "verdict"),
    [
        (0, 0, "no prediction has been evaluated yet"),
        (5, 0, "5 evaluated so far: too few to assess the 80% intervals"),
        (320, 92, "78% of 412 actual times are within the 80% interval: well calibrated"),
        (240, 160, "60% of 400 actual times are within the 80% interval: too narrow"),
        (399, 1, "100% of 400 actual times are within the 80% interval: too wide"),
        # of a few, two standard errors of 80% are as stated
        (36, 4, "90% of 40 actual times are within the 80% interval: well calibrated"),
        (40, 0, "100% of 40 actual times are within the 80% interval: too wide"),
        (20, 20, "50% of 40 actual times are within the 80% interval: too narrow"),
    ],
)
def test_verdict_is_one_sentence_about_the_intervals(inside: int, outside: int, verdict: str) -> None:
    found = calibrate([said()] * inside + [said(low=90.0, high=99.0)] * outside)
    assert found.verdict == verdict


def test_verdict_names_a_bias_where_intervals_fail() -> None:
    wrong = "; half of the predictions are 50% too long or more"
    assert calibrate([said(left=150.0, low=140.0)] * 30).verdict.endswith(wrong)
    assert calibrate([said(left=50.0, high=60.0)] * 30).verdict.endswith("50% too short or more")


predictions = st.builds(
    said,
    left=st.floats(0, 1e6),
    actual=st.none() | st.floats(0, 1e6),
    low=st.floats(0, 1e3),
    high=st.none() | st.floats(1e3, 1e6),
    done=st.none() | st.floats(0, 1),
    method=st.sampled_from(["declared", "pool", ""]),
)


@given(st.lists(predictions, max_size=30))
def test_every_prediction_is_in_exactly_one_row_and_one_count(some: list[Said]) -> None:
    found = calibrate(some)
    parts = [row for row in found.rows if row.age != "all"]
    assert sum(row.judged + row.pending + row.stopped for row in parts) == len(some)
    assert found.total.judged + found.total.pending + found.total.stopped == len(some)
    assert {row.age for row in parts} <= set(AGES)
    for row in found.rows:
        assert (row.within is None) == (row.judged == 0)
        assert row.within is None or 0 <= row.within <= 1
        assert row.median_error is None or row.median_error >= abs(row.bias or 0.0) - 1e-9
    assert calibrate(list(reversed(some))) == found
    assert found.verdict
