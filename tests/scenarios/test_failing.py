"""Jobs that fail, hang, run out of time, or are paused by their users. Timelines stand in the docstrings."""

from __future__ import annotations

import pytest

from coadapt.model import (
    DecisionMade,
    JobFinished,
    JobStarted,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    Recorded,
    ResumeRequested,
    RetryRequested,
)
from coadapt.model.snapshot import Phase
from coadapt.policies import FifoPolicy
from coadapt.simulation.engine.simulated_executor import constant
from tests.builders import a_cluster, a_job, on, simulated
from tests.properties.world import Crash, Hang, Snatch, World, live
from tests.scenarios.told import Script, decided_at, told
from tests.unit.scheduler.phases import Told


def a_world(
    *happenings: object, submissions: tuple[object, ...], shape: str = "1x1", **fields: object
) -> World:
    return World(
        cluster=a_cluster(shape),
        submissions=submissions,  # type: ignore[arg-type]
        happenings=happenings,  # type: ignore[arg-type]
        **{"change_s": 2.0, **fields},  # type: ignore[arg-type]
    )


def test_paused_job_keeps_its_progress_and_others_use_its_gpu() -> None:
    """a has trained 8 s of 30 when its user pauses it at 10; b has the GPU until 17; a, resumed at 15, goes on at 17."""
    world = a_world(
        (10.0, PauseRequested(job="a")),
        (15.0, ResumeRequested(job="a")),
        submissions=((0.0, "a", a_job(duration_s=30, preemptible=False)), (0.0, "b", a_job(duration_s=5))),
    )
    records, _ = live(world, FifoPolicy())
    assert told(records) == [
        "0 start a #1 on n0x1",
        "2 started a",
        "10 stop a (pause)",
        "10 stopped a (paused)",
        "10 start b #1 on n0x1",
        "12 started b",
        "17 succeeded b",
        "17 start a #2 on n0x1",
        "19 started a",
        "41 succeeded a",
    ]


def test_back_off_doubles_and_ends_with_the_retries() -> None:
    """Two retries. It trains for 40 s each time and fails: tried again after 10 s, then 20 s, then it has failed."""
    world = a_world(
        (42.0, Crash("a")),
        (94.0, Crash("a")),
        (156.0, Crash("a")),
        submissions=((0.0, "a", a_job(duration_s=1000, retries=2)),),
    )
    records, state = live(world, FifoPolicy())
    assert told(records) == [
        "0 start a #1 on n0x1",
        "2 started a",
        "42 failed a",
        "52 start a #2 on n0x1",
        "54 started a",
        "94 failed a",
        "114 start a #3 on n0x1",
        "116 started a",
        "156 failed a",
    ]
    failure = state.jobs["a"].failure
    assert failure is not None
    assert (state.jobs["a"].phase, failure.final, failure.attempt) == (Phase.FAILED, "retries", 3)


def test_crash_loop_is_stopped_whatever_retries_are_left() -> None:
    """Fails 1 s after each start, without progress: three times, at 3, 16 and 39."""
    world = a_world(
        (3.0, Crash("a")),
        (16.0, Crash("a")),
        (39.0, Crash("a")),
        submissions=((0.0, "a", a_job(duration_s=1000, retries=50)),),
    )
    records, state = live(world, FifoPolicy())
    assert [line for line in told(records) if "failed" in line] == [
        "3 failed a",
        "16 failed a",
        "39 failed a",
    ]
    failure = state.jobs["a"].failure
    assert failure is not None
    assert (state.jobs["a"].phase, failure.final) == (Phase.FAILED, "crash-loop")


def test_job_killed_by_others_is_placed_again_three_times_and_fails_at_the_fourth() -> None:
    snatched = [(at, Snatch("a")) for at in (100.0, 200.0, 300.0, 400.0)]
    world = a_world(*snatched, submissions=((0.0, "a", a_job(duration_s=10_000)),))
    records, state = live(world, FifoPolicy())
    assert [line for line in told(records) if "start a" in line] == [
        "0 start a #1 on n0x1",
        "100 start a #2 on n0x1",
        "200 start a #3 on n0x1",
        "300 start a #4 on n0x1",
    ]
    failure = state.jobs["a"].failure
    assert failure is not None
    assert (failure.kind, failure.reason) == ("killed", "killed from outside 4 times in 10m")


@pytest.mark.parametrize("interval_s", [None, 30.0])
def test_job_is_stopped_at_the_moment_its_time_limit_is_reached(interval_s: float | None) -> None:
    """20 s of training are allowed: started at 2, stopped at 22, in round mode too; b is decided upon in the next round."""
    world = a_world(
        submissions=(
            (0.0, "a", a_job(duration_s=100, time_limit_s=20, retries=3)),
            (0.0, "b", a_job(duration_s=5)),
        ),
        interval_s=interval_s,
        stop_s=3.0,
    )
    records, state = live(world, FifoPolicy())
    begins = 25 if interval_s is None else 30
    assert told(records) == [
        "0 start a #1 on n0x1",
        "2 started a",
        "22 stop a (time-limit)",
        "25 stopped a (paused)",
        f"{begins} start b #1 on n0x1",
        f"{begins + 2} started b",
        f"{begins + 7} succeeded b",
    ]
    assert state.jobs["a"].phase is Phase.FAILED
    if interval_s is not None:
        assert decided_at(records) == [0.0, 30.0]


def test_time_limit_counts_training_only_and_over_all_attempts() -> None:
    """a trains from 2 to 12, is paused until 50, trains again from 52: its 20 s are over at 62. A retry has all of them again."""
    world = a_world(
        (12.0, PauseRequested(job="a")),
        (50.0, ResumeRequested(job="a")),
        (100.0, RetryRequested(job="a")),
        submissions=((0.0, "a", a_job(duration_s=100, time_limit_s=20)),),
    )
    records, state = live(world, FifoPolicy())
    assert [line for line in told(records) if "stop a" in line] == [
        "12 stop a (pause)",
        "62 stop a (time-limit)",
        "122 stop a (time-limit)",
    ]
    assert state.jobs["a"].attempt == 3


def test_job_that_finishes_just_when_its_time_is_over_has_succeeded() -> None:
    _, result = simulated(
        [(0.0, "a", a_job(duration_s=20, time_limit_s=20))],
        a_cluster("1x1"),
        FifoPolicy(),
        change_cost=constant(2),
    )
    assert result.state.jobs["a"].phase is Phase.SUCCEEDED


def test_recorded_job_that_ran_beyond_its_limit_had_one_that_nobody_enforced() -> None:
    recorded = {"a": Recorded(start_s=0.0, end_s=25.0), "b": None}
    jobs = [(0.0, n, a_job(duration_s=25, time_limit_s=20, recorded=r)) for n, r in recorded.items()]
    _, result = simulated(jobs, a_cluster("1x2"), FifoPolicy(), change_cost=constant(2))
    assert [result.state.jobs[name].phase for name in "ab"] == [Phase.SUCCEEDED, Phase.FAILED]


def test_hung_job_is_stopped_and_tried_again_after_its_back_off() -> None:
    world = a_world((50.0, Hang("a")), submissions=((0.0, "a", a_job(duration_s=60, retries=1)),), stop_s=4.0)
    records, state = live(world, FifoPolicy())
    assert told(records) == [
        "0 start a #1 on n0x1",
        "2 started a",
        "50 stop a (hang)",
        "54 stopped a (paused)",
        "64 start a #2 on n0x1",
        "66 started a",
        "78 succeeded a",
    ]
    assert state.jobs["a"].failure is not None
    assert state.jobs["a"].failure.reason == "no step for 1m, 1.5s would be usual"


def test_drained_node_is_left_and_used_again_when_it_is_opened() -> None:
    world = a_world(
        (10.0, NodeDrained(node="n0")),
        (30.0, NodeOpened(node="n0")),
        submissions=((0.0, "a", a_job(duration_s=20)),),
    )
    records, _ = live(world, FifoPolicy())
    assert told(records)[2:] == [
        "10 stop a (drain)",
        "10 stopped a (drained)",
        "30 start a #2 on n0x1",
        "32 started a",
        "44 succeeded a",
    ]


def test_job_beyond_its_users_quota_waits_and_nobody_behind_it() -> None:
    """ann may have 1 of 4 GPUs: her second job waits for her first under strict FIFO, bob's does not wait for hers."""
    world = a_world(
        (0.0, QuotaSet(group="ann", gpus=1)),
        submissions=(
            (1.0, "a1", a_job(duration_s=20, user="ann")),
            (1.0, "a2", a_job(duration_s=20, user="ann")),
            (1.0, "b", a_job(duration_s=20, user="bob")),
        ),
        shape="1x4",
    )
    records, _ = live(world, FifoPolicy(backfill=False))
    assert [line for line in told(records) if " start " in line] == [
        "1 start a1 #1 on n0x1",
        "1 start b #1 on n0x1",
        "23 start a2 #1 on n0x1",
    ]


def test_policy_that_gives_more_than_the_quota_is_cut_short() -> None:
    policy = Script((0.0, {"a": on(("n0", 2), ("n1", 2))}))
    world = a_world(
        (0.0, QuotaSet(group="ann", gpus=3)),
        submissions=((0.0, "a", a_job(1, at_most=4, duration_s=20, user="ann")),),
        shape="2x2",
    )
    records, _ = live(world, policy)
    assert told(records)[0] == "0 start a #1 on n0x2+n1x1"
    reasons = [
        r.event.reasons["a"].text for r in records if isinstance(r.event, DecisionMade) and r.event.reasons
    ]
    assert reasons == ["Running on 3 of 4 GPUs. The quota of ann is 3, of which 0 are in use."]


def test_log_of_an_older_coadapt_that_tried_again_at_once_is_folded_as_it_was() -> None:
    """It knew neither back-off nor crash loops: what it decided holds, and a job that it tried again has not ended."""
    log = Told().tell(NodeJoined(node=a_cluster("1x1").nodes[0]), at=0.0)
    log.tell(JobSubmitted(job="a", spec=a_job(duration_s=1000, retries=9)))
    for attempt in range(1, 6):
        log.decide(on("n0")).start(on("n0"), attempt).tell(JobStarted(job="a", attempt=attempt))
        assert log.state.jobs["a"].phase is Phase.RUNNING
        log.tell(JobFinished(job="a", attempt=attempt, outcome="failed"), at=attempt)
    log.decide(on("n0")).start(on("n0"), 6).tell(JobStarted(job="a", attempt=6))
    log.tell(JobFinished(job="a", attempt=6, outcome="succeeded"))
    assert (log.state.jobs["a"].phase, log.state.ended) == (Phase.SUCCEEDED, 1)
