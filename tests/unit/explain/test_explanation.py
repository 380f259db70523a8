"""Why jobs are as they are: one sentence for every phase, with its numbers."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.explain.explanation import Explanation, short, why
from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    CancelRequested,
    DecisionMade,
    JobFinished,
    JobHung,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    PauseRequested,
    QuotaSet,
    Reason,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    StopJob,
)
from coadapt.model.snapshot import Phase
from tests.builders import a_cluster, a_job, on
from tests.unit.scheduler.phases import HERE, THERE, Told, job_in

BALANCED = Reason(
    code="balanced",
    text="Running on 2 of up to 4 GPUs. Two more would make it 5% faster.",
    numbers={"gain": 0.05},
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
    assert found.sentence.endswith(".")
    assert found.sentence[0].isupper()
    assert found.state is job_in(phase).state.jobs["a"].shown_state


def test_unknown_job_is_said() -> None:
    with pytest.raises(InputError, match="there is no job 'nobody'"):
        why(Told().state, "nobody")


def test_waiting_job_without_a_reason_is_told_what_it_needs_and_who_has_it() -> None:
    told = job_in(Phase.RUNNING)
    told.tell(JobSubmitted(job="b", spec=a_job(3, user="bob")))
    told.tell(DecisionMade(decision=9))
    found = explained(told, "b")
    assert found.sentence == "Waiting for 3 GPUs. 2 are free. GPUs are held by a (2)."
    assert (found.code, found.numbers["needs_gpus"], found.numbers["free_gpus"]) == ("no-room", 3.0, 2.0)
    assert [(h.job, h.gpus) for h in found.holders] == [("a", 2)]
    # a was declared to take 100 s and trains since 5
    assert found.holders[0].eta == pytest.approx(105.0, rel=1e-3)
    assert found.next == "The first of them is expected to end in 1m 40s."


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
        explained(told, "b").sentence
        == "Cannot run here: it needs 5 GPUs, and the nodes that accept jobs have 4."
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
    assert found.next.startswith("Expected to end in 1m 25s (80% interval ")


def test_reason_older_than_what_the_job_has_is_not_told() -> None:
    told = job_in(Phase.RUNNING).tell(DecisionMade(decision=7, reasons={"a": BALANCED}))
    told.tell(JobStopped(job="a", attempt=2, cause="lost"), at=12.0)
    assert "Running on 2" not in explained(told).sentence


def test_resized_job_says_from_what_and_why() -> None:
    told = job_in(Phase.RUNNING)
    told.tell(DecisionMade(decision=5, targets={"a": THERE}, reasons={"a": BALANCED})).resize(HERE, THERE, 2)
    found = explained(told)
    assert found.sentence == "Moving to 2 GPUs on n0, n1. Two more would make it 5% faster."


def test_blocked_job_names_what_it_waits_for() -> None:
    told = job_in(Phase.RUNNING).tell(JobSubmitted(job="b", spec=a_job(after=("a", "later"))))
    assert explained(told, "b").sentence == "Waiting for a (running), later (not submitted) to succeed."


def test_job_on_hold() -> None:
    told = job_in(Phase.PENDING).tell(PauseRequested(job="a"))
    found = explained(told)
    assert (found.code, found.sentence) == ("on-hold", "Paused on request.")
    assert found.next == "Resume it with 'coadapt resume a'."


def test_job_that_backs_off_says_until_when_and_after_what() -> None:
    told = failing(retries=2, kind="oom", rank=1, exit_code=137)
    found = explained(told, now=44.0)
    assert found.code == "back-off"
    assert found.sentence == "Retrying in 6.0s. Try 1 of 3 ran out of memory on replica 1 with exit code 137."
    assert found.next == "1 retry left after that."


def test_failed_job_says_how_which_rank_and_its_last_line() -> None:
    told = failing(
        retries=0, kind="exception", rank=3, exit_code=1, tail="Traceback\nValueError: \x1b[1mno\n\n"
    )
    found = explained(told)
    assert found.sentence == (
        "The script failed on replica 3 with exit code 1. Last line: ValueError:  [1mno. It has no retries."
    )
    assert found.numbers["rank"] == 3.0
    assert found.next == "Run it again with 'coadapt retry a'."


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "exception", "rank": 0, "exit_code": 1, "reason": "replica 0 exited with 1"},
         "The script failed on replica 0 with exit code 1. It has no retries."),
        ({"kind": "killed", "rank": 2, "exit_code": 137, "reason": "replica 2 was killed by signal 9"},
         "Was killed on replica 2 with signal 9. It has no retries."),
        ({"kind": "oom", "rank": 1, "exit_code": 1, "reason": "replica 1 exited with 1: out of memory"},
         "Ran out of memory on replica 1 with exit code 1. It has no retries."),
        ({"kind": "start", "reason": "cannot start: no such file"},
         "Could not be started: no such file. It has no retries."),
        ({"kind": "exception", "reason": "the loss is not a number"},
         "The script failed: the loss is not a number. It has no retries."),
    ],
)  # fmt: skip
def test_failure_is_described_once(fields: dict[str, object], sentence: str) -> None:
    assert explained(failing(retries=0, **fields)).sentence == sentence


def test_failed_job_says_that_its_retries_are_used() -> None:
    told = failing(retries=1)
    told.decide(HERE).start(HERE, 2).tell(JobStarted(job="a", attempt=2), at=60.0)
    told.tell(JobFinished(job="a", attempt=2, outcome="failed"), at=100.0)
    assert explained(told).sentence == "Failed. No retries are left (1 of 1 used)."


def test_job_at_its_time_limit_is_advised_to_retry_and_then_to_raise_the_limit() -> None:
    """An ended job cannot be updated; a retried one can, and its limit counts from zero."""
    told = job_in(Phase.PAUSED)
    told.tell(SpecChanged(job="a", spec=a_job(2, at_most=4, retries=0, time_limit_s=12.0)))
    told.decide(HERE).start(HERE, 2).tell(JobStarted(job="a", attempt=2), at=5.0)
    stop = StopJob(id=9, job="a", attempt=2, why="time-limit")
    told.tell(ActionsIssued(decision=9, actions=(stop,)))
    assert explained(told).sentence == "Stopping: it reached its time limit of 12s."
    told.tell(JobFinished(job="a", attempt=2, outcome="failed", exit_code=143, rank=0))
    found = explained(told)
    assert (found.state, found.sentence) == ("FAILED", "Stopped at its time limit of 12s.")
    assert found.next == (
        "Run it again with 'coadapt retry a'. Its time limit then counts from zero; to raise it, run "
        "'coadapt update a --time-limit TIME' after that."
    )
    told.tell(RetryRequested(job="a"))
    assert told.state.jobs["a"].phase is Phase.PAUSED


def test_job_that_succeeded_at_once_had_no_restarts() -> None:
    told = Told().tell(
        NodeJoined(node=a_cluster("1x2").nodes[0]), JobSubmitted(job="a", spec=a_job(2)), at=0.0
    )
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1))
    told.tell(JobFinished(job="a", attempt=1, outcome="succeeded"), at=40.0)
    assert explained(told).sentence.endswith(" GPU-hours, no restarts.")


def test_hung_job_says_what_comes_next() -> None:
    told = job_in(Phase.RUNNING).tell(JobHung(job="a", attempt=2, silent_s=60.0, expected_s=2.0)).stop(2)
    found = explained(told)
    assert found.sentence == "Stopping: it stopped making progress: no step for 1m, 2.0s would be usual."
    assert found.next == "Its 2 GPUs become free when its last process has ended. Then the job has failed."


def test_cancelled_because_of_another() -> None:
    told = job_in(Phase.FAILED).tell(JobSubmitted(job="b", spec=a_job(after=("a",))))
    assert explained(told, "b").sentence == "Cancelled because a, on which it depends, failed."
    told = job_in(Phase.RUNNING).tell(CancelRequested(job="a")).stop(2)
    assert explained(told).sentence == "Stopping: cancelled by its user."
    told.tell(JobStopped(job="a", attempt=2, cause="cancelled"))
    assert explained(told).sentence.startswith("Cancelled by its user after")


def test_job_paused_by_the_policy_says_in_favour_of_whom() -> None:
    told = job_in(Phase.RUNNING).tell(JobSubmitted(job="b", spec=a_job(4)))
    told.tell(DecisionMade(decision=5, targets={"a": NOWHERE, "b": on(("n0", 2), ("n1", 2))})).stop(2)
    assert explained(told).sentence == "Stopping in favour of b (4 GPUs)."
    told.tell(JobStopped(job="a", attempt=2, cause="paused"), DecisionMade(decision=6), at=30.0)
    assert explained(told, now=42.0).sentence.startswith(
        "Preempted 12s ago in favour of b (4 GPUs). Waiting for 1 GPU."
    )
    waits = explained(told, "b")
    assert waits.sentence == "Waiting for other jobs to release 4 GPUs on n0, n1 that are reserved for it."


def test_reason_speaks_of_what_the_job_has_only_once_it_has_it() -> None:
    """The column beside it shows the GPUs held now: the two must not contradict each other."""
    told, one = job_in(Phase.RUNNING), on(("n0", 1))
    less = Reason(code="balanced", text="Running on 1 of up to 4 GPUs. Three more would stop b-2.")
    told.tell(DecisionMade(decision=5, targets={"a": one}, reasons={"a": less}))
    job = told.state.jobs["a"]
    assert job.held_gpus == 2
    assert (
        short(told.state, job, 9.0) == "Running on 2 GPUs, to be resized to 1 GPU. Three more would stop b-2."
    )
    told.resize(HERE, one, 2)
    assert short(told.state, job, 9.0) == "Resizing from 2 to 1 GPU. Three more would stop b-2."
    told.tell(JobResized(job="a", attempt=2, placement=one))
    assert short(told.state, job, 9.0) == less.text


def test_reason_of_a_job_whose_gpus_others_still_hold_does_not_say_that_it_runs() -> None:
    told = job_in(Phase.PENDING)
    told.tell(DecisionMade(decision=5, targets={"a": HERE}, reasons={"a": BALANCED}))
    assert short(told.state, told.state.jobs["a"], 9.0) == (
        "Waiting for other jobs to release 2 GPUs on n0 that are reserved for it."
    )
    told.start(HERE, 1)
    assert short(told.state, told.state.jobs["a"], 9.0) == (
        "Starting attempt 1 on 2 GPUs (n0). Two more would make it 5% faster."
    )


def test_clause_about_a_job_that_has_ended_is_left_out() -> None:
    told = job_in(Phase.PENDING)
    waits = Reason(
        code="outbid",
        text="Waiting for 1 GPU. Running jobs make better use of it; the cheapest to displace, cnn-5, would have to stop "
        "entirely. Its deadline cannot be met: it would be 5m late even on all GPUs it can use.",
    )
    told.tell(JobSubmitted(job="cnn-5", spec=a_job(1)), DecisionMade(decision=5, reasons={"a": waits}))
    assert explained(told).sentence == waits.text
    told.tell(CancelRequested(job="cnn-5"))
    said = explained(told).sentence
    assert said == short(told.state, told.state.jobs["a"], 9.0)
    assert said == (
        "Waiting for 1 GPU. Running jobs make better use of it. Its deadline cannot be met: it would be 5m late even on "
        "all GPUs it can use."
    )


def test_job_that_no_quota_allows_is_told_so() -> None:
    told = job_in(Phase.PENDING).tell(QuotaSet(group="eve", gpus=2))
    told.tell(JobSubmitted(job="b", spec=a_job(4, user="eve")), DecisionMade(decision=9))
    found = explained(told, "b")
    assert found.sentence == "Cannot start: it needs 4 GPUs, and the quota of eve is 2."
    assert found.next == "Reduce its minimum with 'coadapt update b --min-gpus N', or ask for a higher quota."
    assert short(told.state, told.state.jobs["b"], 9.0) == found.sentence


def reserved(by: float | None, **more: object) -> DecisionMade:
    """A decision that reserves two GPUs for a."""
    made = {"by": by, "since": 1.0, "gpus": 2, "workers": 2, **more}
    reason = Reason(
        code="outbid", text="Waiting for 2 GPUs. It has waited too long: 2 GPUs are reserved for it."
    )
    return DecisionMade(decision=9, memory={"reservations": {"a": made}}, reasons={"a": reason})


def test_a_reservation_tells_the_latest_start_and_the_nodes() -> None:
    told = job_in(Phase.PENDING)
    told.tell(reserved(told.state.now + 600.0, at=1.0, on=[["n0", 1, "worker"], ["n1", 1, "worker"]]))
    found = explained(told)
    assert found.next == "It starts in 10m at the latest, on n0, n1."
    assert found.numbers["start_by"] == told.state.now + 600.0


def test_a_promise_that_was_broken_is_told_with_what_is_in_the_way() -> None:
    told = job_in(Phase.PENDING)
    told.tell(reserved(told.state.now - 60.0, in_the_way=["slow"]))
    assert explained(told).next == "It was to start 1m ago at the latest. slow is in the way."


def test_a_reservation_without_a_moment_promises_none() -> None:
    told = job_in(Phase.PENDING).tell(reserved(None))
    assert "at the latest" not in explained(told).next


SHOWN = [(phase, phase.value) for phase in Phase if phase not in (Phase.PENDING, Phase.PAUSED)]


@pytest.mark.parametrize(("phase", "shown"), [(Phase.PENDING, "QUEUED"), (Phase.PAUSED, "PREEMPTED"), *SHOWN])
def test_states_have_the_names_that_people_know(phase: Phase, shown: str) -> None:
    assert job_in(phase).state.jobs["a"].shown_state == shown


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.PAUSED])
def test_job_that_a_user_paused_is_paused_until_it_is_resumed(phase: Phase) -> None:
    told = job_in(phase)
    before = told.state.jobs["a"].shown_state
    assert told.tell(PauseRequested(job="a")).state.jobs["a"].shown_state == "PAUSED"
    assert told.tell(ResumeRequested(job="a")).state.jobs["a"].shown_state == before


def test_job_that_is_tried_again_is_back_in_the_queue() -> None:
    assert failing(retries=2).state.jobs["a"].shown_state == "QUEUED"
    told = failing(retries=0).tell(RetryRequested(job="a"))
    assert told.state.jobs["a"].shown_state == "QUEUED"
    told = job_in(Phase.RUNNING).tell(CancelRequested(job="a"))
    action = StopJob(id=told.state.actions + 1, job="a", attempt=2, why="cancel")
    told.tell(ActionsIssued(decision=told.state.decisions, actions=(action,)))
    told.tell(JobStopped(job="a", attempt=2, cause="cancelled"), RetryRequested(job="a"))
    assert told.state.jobs["a"].shown_state == "QUEUED"
