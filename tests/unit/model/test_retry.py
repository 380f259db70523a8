"""How failures are judged."""

from __future__ import annotations

import pytest

from coadapt.model import JobFinished, JobHung, JobStopped
from coadapt.model.retry import Failure, Tries, back_off_s, failure_of, hung, is_quick, judged, killed


def test_back_off_doubles_up_to_five_minutes() -> None:
    assert [back_off_s(n) for n in (1, 2, 3, 4, 5, 6, 7, 10**9)] == [10, 20, 40, 80, 160, 300, 300, 300]


def test_failures_are_tried_again_as_often_as_asked() -> None:
    tries, said = Tries(), []
    for at in (0.0, 100.0, 200.0):
        tries, failure, retry_at = judged(tries, Failure(at=at, attempt=1), retries=2, quick=False)
        said.append((retry_at, failure.final))
    assert said == [(10.0, ""), (120.0, ""), (None, "retries")]


def test_third_quick_failure_in_a_row_ends_the_job_whatever_retries_are_left() -> None:
    tries = Tries()
    ends = []
    for quick in (True, True, False, True, True, True):
        tries, failure, retry_at = judged(tries, Failure(at=0.0, attempt=1), retries=100, quick=quick)
        ends.append(failure.final if retry_at is None else "")
    assert ends == ["", "", "", "", "", "crash-loop"]


@pytest.mark.parametrize(
    ("started_at", "progressed", "quick"),
    [
        (None, False, True),
        (75.0, False, True),
        (70.0, False, True),
        (69.0, False, False),
        (99.0, True, False),
    ],
)
def test_quick_is_within_30_s_of_the_start_and_without_progress(
    started_at: float | None, progressed: bool, quick: bool
) -> None:
    assert is_quick(started_at, progressed, 100.0) is quick


def test_fourth_kill_in_ten_minutes_is_a_failure() -> None:
    tries, failures = Tries(), []
    for at in (0.0, 300.0, 590.0, 599.0, 601.0):
        tries, failure = killed(tries, 1, at)
        failures.append(failure.kind if failure else "")
    # at 601 the first is more than ten minutes ago
    assert failures == ["", "", "", "killed", ""]


def test_time_limit_is_not_tried_again() -> None:
    failure = Failure(at=5.0, attempt=1, kind="time-limit")
    assert judged(Tries(), failure, retries=9, quick=False)[1:] == (
        Failure(at=5.0, attempt=1, kind="time-limit", final="time-limit"),
        None,
    )


def test_end_of_an_attempt_that_was_stopped_for_a_hang_is_that_failure() -> None:
    reason = hung(JobHung(job="a", attempt=2, silent_s=95.0, expected_s=0.5), 100.0)
    assert (reason.kind, reason.reason) == ("hang", "no step for 1m 35s, 0.5s would be usual")
    stopped = failure_of(JobStopped(job="a", attempt=2, cause="paused"), reason, 130.0)
    died = failure_of(
        JobFinished(job="a", attempt=2, outcome="failed", kind="killed", exit_code=137, rank=1, tail="x"),
        reason,
        130.0,
    )
    assert stopped is not None
    assert died is not None
    assert (stopped.kind, stopped.at) == (died.kind, died.at) == ("hang", 130.0)
    assert (died.exit_code, died.rank, died.tail) == (137, 1, "x")
    # it finished before the stop reached it
    assert failure_of(JobFinished(job="a", attempt=2, outcome="succeeded"), reason, 130.0) is None


def test_only_the_end_of_the_last_lines_is_kept() -> None:
    event = JobFinished(job="a", attempt=1, outcome="failed", tail="a" * 5000 + "end")
    failure = failure_of(event, None, 0.0)
    assert failure is not None
    assert len(failure.tail) == 4000
    assert failure.tail.endswith("end")
