"""Why jobs are as they are: one sentence for every phase, with its numbers."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.explain.explanation import Explanation, short, why
from coadapt.model import (
    NOWHERE,
    CancelRequested,
    DecisionMade,
    JobFinished,
    JobHung,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    PauseRequested,
    Reason,
)
from coadapt.model.snapshot import Phase
from tests.builders import a_cluster, a_job, on
from tests.unit.scheduler.phases import HERE, THERE, Told, job_in

BALANCED = Reason(
    code="balanced", text="runs on 2, not 4: the next 2 would speed it up by 5%", numbers={"gain": 0.05}
)


def explained(told: Told, job: str = "a", now: float | None = None) -> Explanation:
    found = why(told.state, job, now)
    # a table's clause never fails where a sentence is found
    assert short(told.state, told.state.jobs[job], told.state.now if now is None else now)
    return found


def failing(retries: int = 1, **fields: object) -> Told:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, retries=retries)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1))
    return told.tell(JobFinished(job="a", attempt=1, outcome="failed", **fields), at=40.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_a_sentence_and_a_code(phase: Phase) -> None:
    found = explained(job_in(phase))
    assert found.sentence
    assert found.code
    assert found.phase is phase


def test_unknown_job_is_said() -> None:
    with pytest.raises(InputError, match="there is no job 'nobody'"):
        why(Told().state, "nobody")


def test_waiting_job_without_a_reason_is_told_what_it_needs_and_who_has_it() -> None:
    told = job_in(Phase.RUNNING)
    told.tell(JobSubmitted(job="b", spec=a_job(3, user="bob")))
    told.tell(DecisionMade(decision=9))
    found = explained(told, "b")
    assert found.sentence == "no room: it needs 3 GPUs, 2 free; a has 2"
    assert (found.code, found.numbers["needs_gpus"], found.numbers["free_gpus"]) == ("no-room", 3.0, 2.0)
    assert [(h.job, h.gpus) for h in found.holders] == [("a", 2)]
    # a was declared to take 100 s and trains since 5
    assert found.holders[0].eta == pytest.approx(105.0, rel=1e-3)
    assert found.next == "the first of them is expected to end in 1m 40s"


def test_holders_are_the_largest_and_at_most_five() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x64").nodes[0]), at=0.0)
    for i in range(8):
        told.tell(JobSubmitted(job=f"j{i}", spec=a_job(i + 1)))
        told.decide(on(("n0", i + 1)), f"j{i}").start(on(("n0", i + 1)), 1, f"j{i}")
    told.tell(JobSubmitted(job="b", spec=a_job(40)), DecisionMade(decision=99))
    found = explained(told, "b")
    assert [(h.job, h.gpus) for h in found.holders] == [(f"j{i}", i + 1) for i in (7, 6, 5, 4, 3)]


def test_job_that_no_cluster_bears_is_told_so() -> None:
    told = job_in(Phase.PENDING).tell(JobSubmitted(job="b", spec=a_job(5)), DecisionMade(decision=9))
    assert (
        explained(told, "b").sentence == "cannot run here: it needs 5 GPUs, and nodes that take jobs have 4"
    )


def test_reason_of_the_decision_is_told_with_its_number_and_time() -> None:
    told = job_in(Phase.RUNNING)
    told.tell(DecisionMade(decision=7, reasons={"a": BALANCED}), at=9.0)
    found = explained(told, now=20.0)
    assert (found.sentence, found.code, found.decision, found.decided_at) == (
        BALANCED.text,
        "balanced",
        7,
        9.0,
    )
    assert found.numbers["gain"] == 0.05
    assert found.next.startswith("ends in about 1m 25s")


def test_reason_older_than_what_the_job_has_is_not_told() -> None:
    told = job_in(Phase.RUNNING).tell(DecisionMade(decision=7, reasons={"a": BALANCED}))
    told.tell(JobStopped(job="a", attempt=2, cause="lost"), at=12.0)
    assert "runs on 2" not in explained(told).sentence


def test_resized_job_says_from_what_and_why() -> None:
    told = job_in(Phase.RUNNING)
    told.tell(DecisionMade(decision=5, targets={"a": THERE}, reasons={"a": BALANCED})).resize(HERE, THERE, 2)
    found = explained(told)
    assert found.sentence == f"is being resized from 2 to 2 GPUs: {BALANCED.text}"


def test_blocked_job_names_what_it_waits_for() -> None:
    told = job_in(Phase.RUNNING).tell(JobSubmitted(job="b", spec=a_job(after=("a", "later"))))
    assert explained(told, "b").sentence == "waits until a (running), later (not submitted) have succeeded"


def test_job_on_hold() -> None:
    told = job_in(Phase.PENDING).tell(PauseRequested(job="a"))
    found = explained(told)
    assert (found.code, found.sentence) == ("on-hold", "on hold: its user paused it")
    assert found.next == "coadapt resume a lets it run again"


def test_job_that_backs_off_says_until_when_and_after_what() -> None:
    told = failing(retries=2, kind="oom", rank=1, exit_code=137)
    found = explained(told, now=44.0)
    assert found.code == "back-off"
    assert found.sentence == "waits for 6.0s after try 1 of 3: it ran out of memory on rank 1 (exit code 137)"
    assert found.next == "then it is tried again; 1 more retry after that"


def test_failed_job_says_how_which_rank_and_its_last_line() -> None:
    told = failing(
        retries=0, kind="exception", rank=3, exit_code=1, tail="Traceback\nValueError: \x1b[1mno\n\n"
    )
    found = explained(told)
    assert found.sentence == (
        "failed by an error of its script on rank 3 (exit code 1); its last line: ValueError:  [1mno (it has no retries)"
    )
    assert found.numbers["rank"] == 3.0
    assert found.next == "coadapt retry a runs it again"


def test_hung_job_says_what_comes_next() -> None:
    told = job_in(Phase.RUNNING).tell(JobHung(job="a", attempt=2, silent_s=60.0, expected_s=2.0)).stop(2)
    found = explained(told)
    assert found.sentence == "is being stopped: it hung: no step for 1m, 2.0s would be usual"
    assert found.next == "its 2 GPUs are free once its last process is gone; then it has failed"


def test_cancelled_because_of_another() -> None:
    told = job_in(Phase.FAILED).tell(JobSubmitted(job="b", spec=a_job(after=("a",))))
    assert explained(told, "b").sentence == "cancelled: it was to run after a, which failed"
    told = job_in(Phase.RUNNING).tell(CancelRequested(job="a")).stop(2)
    assert explained(told).sentence == "is being stopped: its user cancelled it"
    told.tell(JobStopped(job="a", attempt=2, cause="cancelled"))
    assert explained(told).sentence.startswith("cancelled by its user after")


def test_job_paused_by_the_policy_says_in_favour_of_whom() -> None:
    told = job_in(Phase.RUNNING).tell(JobSubmitted(job="b", spec=a_job(4)))
    told.tell(DecisionMade(decision=5, targets={"a": NOWHERE, "b": on(("n0", 2), ("n1", 2))})).stop(2)
    assert explained(told).sentence == "is being stopped in favour of b (4 GPUs)"
    told.tell(JobStopped(job="a", attempt=2, cause="paused"), DecisionMade(decision=6), at=30.0)
    assert explained(told, now=42.0).sentence.startswith("stopped 12s ago in favour of b (4 GPUs); no room:")
    waits = explained(told, "b")
    assert waits.sentence == "has been promised 4 GPUs on n0, n1, which others still hold"
