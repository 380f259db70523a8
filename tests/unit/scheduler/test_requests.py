"""What users ask for: pause, resume, retry, and what they may ask for when."""

from __future__ import annotations

import pytest

from coadapt.model import (
    NOWHERE,
    CancelRequested,
    JobFinished,
    JobHung,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    ResumeRequested,
    RetryRequested,
    StopJob,
    Woke,
)
from coadapt.model.snapshot import Phase
from coadapt.scheduler.ready_actions import settle
from tests.builders import a_cluster, a_job
from tests.unit.scheduler.phases import HERE, Told, job_in


def stops(told: Told) -> list[str]:
    return [action.why for action in settle(told.state) if isinstance(action, StopJob)]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.RESIZING])
def test_paused_job_is_stopped_and_gets_nothing_until_it_is_resumed(phase: Phase) -> None:
    told = job_in(phase).tell(PauseRequested(job="a"))
    job = told.state.jobs["a"]
    assert (job.target, list(told.state.active)) == (NOWHERE, [])
    assert stops(told) == ["pause"]
    told.stop(2).tell(JobStopped(job="a", attempt=2, cause="paused"))
    assert (job.phase, job.on_hold, list(told.state.active)) == (Phase.PAUSED, True, [])
    told.tell(ResumeRequested(job="a"))
    assert list(told.state.waiting) == ["a"]
    assert told.state.undecided


def test_job_that_may_not_be_preempted_is_paused_by_its_user() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, preemptible=False)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), PauseRequested(job="a"))
    assert stops(told) == ["pause"]


def test_pending_job_on_hold_stays_pending() -> None:
    told = job_in(Phase.PENDING).tell(PauseRequested(job="a"))
    assert told.state.jobs["a"].phase is Phase.PENDING
    assert not told.state.active
    told.tell(CancelRequested(job="a"))
    assert told.state.jobs["a"].phase is Phase.CANCELLED
    assert not told.state.jobs["a"].on_hold


def test_job_resumed_while_it_is_being_stopped_waits_for_its_end() -> None:
    told = job_in(Phase.RUNNING).tell(PauseRequested(job="a")).stop(2).tell(ResumeRequested(job="a"))
    assert list(told.state.waiting) == ["a"]
    assert settle(told.state) == []
    told.tell(JobStopped(job="a", attempt=2, cause="paused"))
    assert told.state.jobs["a"].phase is Phase.PAUSED
    assert list(told.state.waiting) == ["a"]


def test_blocked_job_on_hold_stays_on_hold_when_what_it_waited_for_is_done() -> None:
    told = job_in(Phase.RUNNING).tell(JobSubmitted(job="b", spec=a_job(after=("a",))))
    told.tell(PauseRequested(job="b"), JobFinished(job="a", attempt=2, outcome="succeeded"))
    assert (list(told.state.active), dict(told.state.blocked)) == ([], {})
    assert list(told.tell(ResumeRequested(job="b")).state.active) == ["b"]


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED])
def test_retried_job_waits_again_and_its_attempts_go_on(phase: Phase) -> None:
    told = job_in(phase).tell(JobSubmitted(job="b", spec=a_job(after=("a",))))
    assert told.state.ended == 2
    told.tell(RetryRequested(job="a"))
    job = told.state.jobs["a"]
    assert (job.phase, job.finished_at, job.attempt, job.tries.failures) == (Phase.PAUSED, None, 2, 0)
    assert list(told.state.waiting) == ["a"]
    # those that were cancelled because of it stay so
    assert (told.state.jobs["b"].phase, told.state.ended) == (Phase.CANCELLED, 1)
    told.decide(HERE).start(HERE, 3)
    assert job.phase is Phase.STARTING


def test_retry_of_a_job_that_never_ran_makes_it_pending() -> None:
    told = job_in(Phase.PENDING).tell(CancelRequested(job="a"), RetryRequested(job="a"))
    assert told.state.jobs["a"].phase is Phase.PENDING
    assert not told.state.jobs["a"].cancelling


def test_retry_of_a_job_whose_dependency_failed_changes_nothing_until_that_is_retried() -> None:
    told = job_in(Phase.FAILED).tell(JobSubmitted(job="b", spec=a_job(after=("a",))), RetryRequested(job="b"))
    assert told.state.jobs["b"].phase is Phase.CANCELLED
    told.tell(RetryRequested(job="a"), RetryRequested(job="b"))
    assert dict(told.state.blocked) == {"b": {"a"}}


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED])
def test_retry_of_a_job_that_has_not_failed_changes_nothing(phase: Phase) -> None:
    assert job_in(phase).tell(RetryRequested(job="a")).state.jobs["a"].phase is phase


def test_opened_node_takes_replicas_again_but_not_if_it_is_lost() -> None:
    told = job_in(Phase.PENDING).tell(NodeDrained(node="n0"))
    assert list(told.state.nodes) == ["n1"]
    told.tell(NodeOpened(node="n0"))
    assert (list(told.state.nodes), told.state.free_gpus) == (["n0", "n1"], 4)
    told.tell(NodeDrained(node="n0"), NodeLost(node="n0"), NodeOpened(node="n0"))
    assert list(told.state.nodes) == ["n1"]


def test_quota_is_kept_until_it_is_taken_back() -> None:
    told = Told().tell(QuotaSet(group="ann", gpus=2), QuotaSet(group="bob", gpus=0), QuotaSet(group="ann"))
    assert told.state.quotas == {"bob": 0}
    assert told.state.undecided


def test_hung_attempt_is_stopped_and_its_end_is_a_failure() -> None:
    told = job_in(Phase.RUNNING).tell(JobHung(job="a", attempt=2, silent_s=60.0, expected_s=1.0))
    assert stops(told) == ["hang"]
    told.stop(2).tell(JobStopped(job="a", attempt=2, cause="paused"), at=9.0)
    job = told.state.jobs["a"]
    assert job.phase is Phase.FAILED
    assert job.failure is not None
    assert (job.failure.kind, job.failure.at, job.failure.final) == ("hang", 9.0, "retries")


def test_hang_of_an_attempt_that_is_being_stopped_is_no_failure() -> None:
    told = job_in(Phase.STOPPING).tell(JobHung(job="a", attempt=2, silent_s=60.0, expected_s=1.0))
    told.tell(JobStopped(job="a", attempt=2, cause="paused"))
    assert told.state.jobs["a"].phase is Phase.PAUSED


def test_failed_job_backs_off_on_hold_and_is_tried_when_both_are_over() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, retries=1)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1))
    told.tell(JobFinished(job="a", attempt=1, outcome="failed"), at=5.0)
    job = told.state.jobs["a"]
    assert (job.phase, job.retry_at, list(told.state.active)) == (Phase.PAUSED, 15.0, [])
    told.tell(PauseRequested(job="a"), Woke(), at=15.0)
    assert (job.retry_at, list(told.state.active)) == (None, [])
    told.tell(ResumeRequested(job="a"))
    assert list(told.state.active) == ["a"]
