from __future__ import annotations

import pytest

from coadapt.model import Recorded
from coadapt.simulation.recorded_run import RecordedCheck, as_recorded
from tests.unit.cli.traces import a_trace_job, a_workload


def test_recorded_run_counts_waits_before_the_start_and_between_attempts() -> None:
    found = as_recorded(
        a_workload(
            a_trace_job("a", 2, at=10, duration_s=100, recorded=Recorded(start_s=20, end_s=120)),
            # 300 s from start to end, of which it ran 200: it was requeued
            a_trace_job("b", 1, at=20, duration_s=200, recorded=Recorded(start_s=40, end_s=340)),
            a_trace_job("c", 8, at=30),
        )
    )
    assert found is not None
    assert (found.num_jobs, found.num_finished) == (2, 2)
    assert found.avg_wait_s == pytest.approx((10 + 120) / 2)
    assert found.jct_s == {"a": 110, "b": 320}
    assert found.avg_jct_s == pytest.approx(215)
    assert found.makespan_s == 330
    assert found.gpu_hours == pytest.approx((2 * 100 + 200) / 3600)
    assert "jct_s" not in found.plain()


def test_recorded_run_without_ends_has_waits_only() -> None:
    found = as_recorded(a_workload(a_trace_job("a", recorded=Recorded(start_s=5))))
    assert found is not None
    assert (found.avg_wait_s, found.avg_jct_s, found.makespan_s) == (5, None, None)


def test_trace_without_starts_recorded_no_run() -> None:
    assert as_recorded(a_workload(a_trace_job("a"))) is None


@pytest.mark.parametrize(
    ("late", "mapped", "said"),
    [
        (
            0,
            False,
            "all 114 jobs could start at their recorded times: 8x4 is large enough for the recorded run",
        ),
        (
            26,
            False,
            "26 jobs of 114 could not start at their recorded times: the given cluster (8x4) is smaller",
        ),
        (26, True, "or mapped profiles hold their GPUs longer than the recorded jobs did"),
    ],
)
def test_replay_says_what_late_jobs_mean(late: int, mapped: bool, said: str) -> None:
    found = RecordedCheck(
        cluster="8x4",
        jobs=114,
        wait_error_p50_s=0.0,
        wait_error_p90_s=60.0,
        jct_error_p50_s=None,
        jct_error_p90_s=None,
        avg_jct_error=None,
        late=late,
        mapped=mapped,
    )
    assert said in found.verdict
    assert said in found.sentence
