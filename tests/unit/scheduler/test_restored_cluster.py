"""The fold of a restore, of code that is missing, and of ends that nobody heard at the time."""

from __future__ import annotations

import pytest

from coadapt.explain.explanation import short, why
from coadapt.model import (
    ClusterRestored,
    CodeFound,
    CodeMissing,
    JobFinished,
    JobStarted,
    JobStopped,
    NodeJoined,
    RetryRequested,
)
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.runtime.code_watch import CodeWatch
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.saved_state import load, save
from tests.builders import a_cluster, records_of
from tests.unit.scheduler.phases import HERE, Told, job_in


@pytest.mark.parametrize("phase", Phase)
def test_restore_ends_what_ran_and_forgets_nodes(phase: Phase) -> None:
    told = job_in(phase)
    attempt = told.state.jobs["a"].attempt
    told.tell(ClusterRestored(made_at=told.state.now), at=told.state.now + 1000.0)
    state, job = told.state, told.state.jobs["a"]
    assert job.phase is (Phase.PAUSED if phase in HOLDING else phase)
    assert (job.held_gpus, job.target_gpus, job.attempt, job.in_flight) == (0, 0, attempt, None)
    assert (state.all_nodes, state.nodes, state.gpus, state.free_gpus) == ({}, {}, 0, 0)
    assert job.tries.preempted == ()
    assert job.failure is None or phase is Phase.FAILED
    if phase not in ENDED:
        # nodes of the new machine join, and it goes on
        told.tell(NodeJoined(node=a_cluster("2x2").nodes[0]))
        told.decide(HERE).start(HERE, attempt + 1).tell(JobStarted(job="a", attempt=attempt + 1))
        assert job.phase is Phase.RUNNING


def ran(told: Told) -> tuple[float, float]:
    job = told.state.jobs["a"]
    return job.ran_s(told.state.now), job.attained_gpu_s(told.state.now)


@pytest.mark.parametrize(("ended_at", "counted_s"), [(None, 500.0), (60.0, 60.0), (-5.0, 0.0), (9e9, 500.0)])
def test_training_counts_up_to_the_end_that_the_keeper_noted(
    ended_at: float | None, counted_s: float
) -> None:
    told = job_in(Phase.RUNNING)
    began, gpus, attempt = told.state.now, told.state.jobs["a"].held_gpus, told.state.jobs["a"].attempt
    waited_s = told.state.jobs["a"].waited_s(began)
    before = ran(told)
    ended = None if ended_at is None else began + ended_at
    told.tell(JobStopped(job="a", attempt=attempt, cause="shutdown", ended_at=ended), at=began + 500.0)
    after = ran(told)
    assert (after[0] - before[0], after[1] - before[1]) == (counted_s, gpus * counted_s)
    job = told.state.jobs["a"]
    assert (job.phase, job.failure, job.tries.preempted) == (Phase.PAUSED, None, ())
    assert job.waited_s(told.state.now) == pytest.approx(waited_s + 500.0 - counted_s)


def test_job_that_ended_while_no_controller_ran_trained_until_then() -> None:
    told = job_in(Phase.RUNNING)
    began, attempt = told.state.now, told.state.jobs["a"].attempt
    done = JobFinished(job="a", attempt=attempt, outcome="succeeded", exit_code=0, ended_at=began + 7.0)
    told.tell(done, at=began + 4000.0)
    assert told.state.jobs["a"].ran_before_s == 7.0
    assert told.state.jobs["a"].phase is Phase.SUCCEEDED


def with_code(phase: Phase) -> Told:
    """The job of ``job_in``, with frozen code."""
    told, again = job_in(phase), Told()
    for record in told.records:
        event = record.event
        if getattr(event, "spec", None) is not None:
            (event,) = [type(event)(job=event.job, spec=_with_code(event.spec))]  # type: ignore[union-attr]
        again.tell(event, at=record.at)
    return again


def _with_code(spec: object) -> object:
    from msgspec.structs import replace

    return replace(spec, code="ab" * 32)  # type: ignore[type-var]


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.PAUSED])
def test_job_without_code_waits_and_says_so_until_it_is_there(phase: Phase) -> None:
    told, there = with_code(phase), set[str]()
    watch = CodeWatch(there)
    (missing,) = watch.look(told.state, 0.0)
    assert missing == CodeMissing(job="a")
    told.tell(missing)
    assert told.state.active == {}
    assert "a" in told.state.jobs
    said = why(told.state, "a", told.state.now)
    assert said.code == "code-missing"
    assert "abababababab is not in the home directory" in short(
        told.state, told.state.jobs["a"], told.state.now
    )
    assert list(watch.look(told.state, 1.0)) == [], "not before it is time"
    assert list(watch.look(told.state, 10.0)) == []
    again = load(save(told.state))
    assert save(again) == save(told.state)
    assert again.jobs["a"].missing_code
    there.add("ab" * 32)
    # another controller, which knows from the state alone
    (found,) = CodeWatch(there).look(again, 0.0)
    assert found == CodeFound(job="a")
    assert list(watch.look(told.state, 20.0)) == [found]
    told.tell(found)
    assert list(told.state.active) == ["a"]


def test_code_of_jobs_that_run_or_ended_is_not_looked_for() -> None:
    for phase in (Phase.RUNNING, Phase.SUCCEEDED, Phase.STOPPING):
        assert list(CodeWatch(()).look(with_code(phase).state, 0.0)) == []
        told = with_code(phase).tell(CodeMissing(job="a"), CodeFound(job="a"), CodeMissing(job="x"))
        assert not told.state.jobs["a"].missing_code
    told = with_code(Phase.FAILED).tell(RetryRequested(job="a"))
    assert [event.job for event in CodeWatch(()).look(told.state, 0.0)] == ["a"]


def test_state_of_a_log_without_these_events_is_as_before() -> None:
    state = SchedulerState()
    for record in records_of((0.0, NodeJoined(node=a_cluster("1x1").nodes[0]))):
        state.apply(record)
    assert b"without_code" not in save(state)
