"""The benchmark of ETAs judges by what was known at the time, and its clocks do not run while a job waits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.prediction_remaining import eta_rows
from benchmarks.remaining_jobs import SHARES, Clocks
from benchmarks.remaining_real import CLOCKS, log_scores, train
from benchmarks.remaining_streams import KINDS, follow, stream
from benchmarks.remaining_told import Told, scored

from coadapt.model import JobFinished, JobStarted, JobStopped, Record


def test_clock_of_a_job_stands_still_while_it_holds_nothing() -> None:
    clocks = Clocks()
    events = (
        (10.0, JobStarted(job="a", attempt=1)),
        (25.0, JobStopped(job="a", attempt=1, cause="paused")),
        (100.0, JobStarted(job="a", attempt=2)),
        (107.0, JobFinished(job="a", attempt=2, outcome="succeeded")),
    )
    for number, (at, event) in enumerate(events):
        clocks.take(Record(seq=number, at=at, event=event))
    assert clocks.of("a", 107.0) == 22.0
    assert clocks.ended == {"a": 22.0}


def a_telling(at: float, ended_at: float, real_s: float, told_s: float = 100.0) -> Told:
    return Told(
        job=f"{at}",
        share=0.5,
        at=at,
        ran_s=0.0,
        ways={"kept": (told_s, 0.1)},
        real_s=real_s,
        ended_at=ended_at,
    )


def test_what_is_told_is_calibrated_by_jobs_that_had_ended_and_no_others() -> None:
    ended = [a_telling(float(n), 50.0, 150.0) for n in range(40)]
    for at, calibrated in ((49.0, False), (51.0, True)):
        tellings = [a_telling(at, 200.0, 150.0), *ended]
        found = {each.at: score[1] for each, score in scored(tellings, "kept")}
        assert found[39.0] == pytest.approx(100.0)
        assert (found[at] > 140.0) is calibrated


def test_rows_promise_half_and_intervals_only() -> None:
    scores = [(share, 110.0, 100.0, True) for share in SHARES for _ in range(10)]
    rows = eta_rows("x", scores, 5.0, 3.0)
    assert [math.isfinite(row.must) for row in rows] == [False, False, True, False, False, True]
    assert rows[2].figure == pytest.approx(10.0)
    assert not rows[2].holds
    assert rows[-1].figure == pytest.approx(20.0)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_go_forward_and_are_scored_at_every_share(kind: str) -> None:
    at, work, told = stream(kind, np.random.default_rng(3))
    assert (np.diff(at) > 0).all()
    assert (np.diff(work) > 0).all()
    assert [score[0] for score in follow(at, work, told)] == list(SHARES)


def test_a_real_run_writes_three_clocks_that_only_go_forward(tmp_path) -> None:
    train(tmp_path / "log", 1, 0.2)
    lines = [line.split("\t") for line in (tmp_path / "log").read_text().splitlines()]
    assert {len(each) for each in lines} == {len(CLOCKS)}
    for clock in zip(*lines, strict=True):
        stamps = [line.split(" Epoch")[0] for line in clock]
        assert stamps == sorted(stamps)
        scored = [score[0] for score in log_scores(list(clock))]
        # how many lines so short a run writes depends on the machine; a share is scored at the first that allows it
        assert scored == list(SHARES)[: len(scored)]
        assert scored
