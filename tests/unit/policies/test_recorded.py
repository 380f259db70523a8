"""Replay of recorded starts."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import Recorded
from coadapt.policies import FifoPolicy, RecordedPolicy
from tests.unit.policies.harness import Submission, a_submission, decisions, reasons, run, started


def _recorded(job: Submission, start_s: float | None) -> Submission:
    at, name, spec = job
    return at, name, msgspec.structs.replace(spec, recorded=Recorded(start_s=start_s))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=12)
)
@settings(max_examples=40, deadline=None)
def test_recorded_replay_of_a_fifo_run_starts_every_job_when_it_did(rows: list[tuple[int, int, int]]) -> None:
    jobs = [a_submission(f"j{n}", at, gpus, duration) for n, (at, gpus, duration) in enumerate(rows)]
    truth = started(run(FifoPolicy(), jobs, "2x2"))
    replay = run(RecordedPolicy(), [_recorded(job, truth[job[1]]) for job in jobs], "2x2")
    assert started(replay) == truth


def test_recorded_start_that_cannot_be_kept_waits_and_says_so() -> None:
    jobs = [
        _recorded(a_submission("a", gpus=4, duration_s=100), 5.0),
        _recorded(a_submission("b", gpus=4), 50.0),
    ]
    result = run(RecordedPolicy(), jobs)
    assert started(result) == {"a": 5.0, "b": 105.0}
    assert reasons(result, "b") == [(50.0, "waits"), (105.0, "recorded")]
    assert decisions(result)[-2][1].reasons["b"].numbers["late_s"] == 55.0


def test_recorded_job_without_a_start_begins_when_submitted() -> None:
    assert started(run(RecordedPolicy(), [_recorded(a_submission("a", 7), None), a_submission("b", 8)])) == {
        "a": 7.0,
        "b": 8.0,
    }
