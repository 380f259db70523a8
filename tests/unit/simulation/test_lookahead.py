"""The live state simulated forward: what is to come is foretold from the middle of a run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from coadapt.model import JobSpec, JobSubmitted, NodeJoined, PauseRequested, Record, Woke
from coadapt.model.snapshot import ENDED
from coadapt.placement import PackedPlacer
from coadapt.policies import FifoPolicy, Policy
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.srtf import SrtfPolicy
from coadapt.scheduler import Scheduler, SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.simulation.lookahead import deadline_promise, forward, preview, sized
from tests.builders import a_cluster, a_job, a_trained_job, simulated


def scheduler_with(policy: Callable[[], Policy]) -> Callable[[SchedulerState], Scheduler]:
    return lambda state: Scheduler(policy(), PackedPlacer(), state=state)


def folded(records: list[Record], until: float) -> SchedulerState:
    state = SchedulerState()
    for record in records:
        if record.at <= until:
            state.apply(record)
    return state


def a_run(policy: Policy, *, cut: float) -> tuple[SchedulerState, dict[str, tuple[float, float]]]:
    """Eight jobs on four GPUs; the state at ``cut`` of the run, and what then really came: start and end of each job."""
    specs = [
        a_trained_job(2),
        a_job(2, duration_s=400.0),
        a_trained_job(4),
        a_job(1, duration_s=900.0),
        a_trained_job(2),
    ]
    specs += [a_job(4, duration_s=100.0), a_trained_job(1), a_job(2, duration_s=700.0)]
    submissions = [(10.0 * i, f"j{i}", spec) for i, spec in enumerate(specs)]
    records, result = simulated(submissions, a_cluster("1x4"), policy)
    actual = {}
    for job in result.state.jobs.values():
        assert job.started_at is not None
        assert job.finished_at is not None
        actual[job.id] = (job.started_at, job.finished_at)
    return folded(records, cut * result.state.now), actual


@pytest.mark.parametrize(
    ("policy", "cut"),
    [(FifoPolicy, 0.25), (FifoPolicy, 0.4), (FifoPolicy, 0.7), (SrtfPolicy, 0.4), (SrtfPolicy, 0.7)],
)
def test_run_cut_in_the_middle_is_foretold(policy: Callable[[], Policy], cut: float) -> None:
    state, actual = a_run(policy(), cut=cut)
    found = forward(state, scheduler_with(policy), draws=4)
    assert found.keys() == {name for name, job in state.jobs.items() if job.phase not in ENDED}
    for name, outlook in found.items():
        start, end = actual[name]
        # what a simulated agent reports is up to half a minute old
        near = 31.0 + 0.1 * (end - state.now)
        if start > state.now:
            assert outlook.starts_at == pytest.approx(start, abs=near)
        assert outlook.finishes_at == pytest.approx(end, abs=near)
        assert outlook.low is not None
        assert outlook.high is not None
        assert outlook.low <= outlook.high


def test_what_ends_first_is_foretold_to_end_first() -> None:
    state, actual = a_run(FifoPolicy(), cut=0.3)
    found = forward(state, scheduler_with(FifoPolicy), draws=0)
    assert sorted(found, key=lambda name: found[name].finishes_at or 0.0) == sorted(
        found, key=lambda name: actual[name][1]
    )


def test_state_is_left_alone_and_the_same_state_gives_the_same_answer() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.4)
    before = saved_state.save(state)
    first = forward(state, scheduler_with(FifoPolicy), draws=3)
    assert saved_state.save(state) == before
    assert forward(state, scheduler_with(FifoPolicy), draws=3) == first
    assert forward(state, scheduler_with(FifoPolicy), draws=3, seed=1) != first


def test_time_that_has_passed_since_the_last_record_counts() -> None:
    state, actual = a_run(FifoPolicy(), cut=0.1)
    running = next(job for job in state.jobs.values() if job.spec.duration_s == 400.0)
    found = forward(state, scheduler_with(FifoPolicy), now=state.now + 50.0, draws=0)
    assert found[running.id].finishes_at == pytest.approx(actual[running.id][1], abs=2.0)


def test_hypothetical_job_waits_its_turn_and_changes_nothing() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.4)
    alone = forward(state, scheduler_with(FifoPolicy), draws=0)
    found = forward(state, scheduler_with(FifoPolicy), add=[("new", a_job(4, duration_s=50.0))], draws=0)
    last = max(outlook.finishes_at or 0.0 for outlook in alone.values())
    assert found["new"].starts_at == pytest.approx(last, abs=1.0)
    assert found["new"].gpu_s == pytest.approx(4 * (50.0 + 30.0), rel=0.01)
    assert {name: outlook for name, outlook in found.items() if name != "new"} == alone
    assert "new" not in state.jobs


def test_preview_tells_sizes_apart() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.7)
    spec = a_trained_job(4, at_most=4)
    chosen, others = preview(state, scheduler_with(FifoPolicy), spec, [1, 2, 4], draws=2)
    assert chosen.finishes_at is not None
    ends = {size: outlook.finishes_at for size, outlook in others.items()}
    starts = {size: outlook.starts_at for size, outlook in others.items()}
    assert ends.keys() == {1, 2, 4}
    assert (starts[1] or 0.0) <= (starts[2] or 0.0) <= (starts[4] or 0.0)
    assert sized(spec, 2).worker.min == sized(spec, 2).worker.max == sized(spec, 2).requested == 2


def test_paused_job_has_no_end_and_says_why() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.2)
    waiting = next(name for name in state.waiting)
    state.apply(Record(seq=state.seq + 1, at=state.now, event=PauseRequested(job=waiting)))
    found = forward(state, scheduler_with(FifoPolicy), draws=2)[waiting]
    assert (found.starts_at, found.finishes_at, found.high) == (None, None, None)
    assert found.note == "Paused on request."


def test_job_that_fits_nowhere_does_not_start() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.7)
    state.apply(Record(seq=state.seq + 1, at=state.now, event=JobSubmitted(job="huge", spec=a_job(64))))
    found = forward(state, scheduler_with(FifoPolicy), draws=1)["huge"]
    assert (found.starts_at, found.finishes_at) == (None, None)
    assert found.note == "This job does not start within the forecast."


def test_steps_bound_what_is_simulated() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.1)
    found = forward(state, scheduler_with(FifoPolicy), draws=1, steps=3)
    assert any(outlook.finishes_at is None for outlook in found.values())


def test_hypothetical_job_that_nothing_is_known_of_is_said_to_be_guessed() -> None:
    spec = JobSpec(name="script", command=("python", "train.py"))
    known = a_job(2, duration_s=50.0)
    empty = SchedulerState()
    for number, node in enumerate(a_cluster("1x4").nodes):
        empty.apply(Record(seq=number, at=0.0, event=NodeJoined(node=node)))
    found = forward(empty, scheduler_with(FifoPolicy), add=[("script", spec), ("known", known)], draws=1)
    assert "guess" in found["script"].note
    assert found["known"].note == ""


def test_job_of_unknown_length_has_a_wide_interval() -> None:
    state, _ = a_run(FifoPolicy(), cut=0.9)
    spec = JobSpec(name="script", command=("python", "train.py"))
    found = forward(state, scheduler_with(FifoPolicy), add=[("script", spec)], draws=8)["script"]
    assert found.finishes_at is not None
    assert found.low is not None
    assert found.high is None or found.high - state.now > 3 * (found.low - state.now)


def two_users(*, floor: float) -> tuple[SchedulerState, Callable[[SchedulerState], Scheduler]]:
    """Ann has four jobs of 1000 s on four GPUs; bob comes."""
    records = [Record(seq=0, at=0.0, event=NodeJoined(node=a_cluster("1x4").nodes[0]))]
    for number in range(4):
        spec = a_job(1, name=f"a{number}", duration_s=1000.0, user="ann")
        records.append(Record(seq=number + 1, at=1.0, event=JobSubmitted(job=f"a{number}", spec=spec)))
    return folded(records, 1.0), scheduler_with(lambda: CoadaptPolicy(floor=floor))


def test_a_deadline_within_the_share_is_promised() -> None:
    state, make = two_users(floor=0.8)
    spec = a_job(1, name="b", duration_s=500.0, user="bob", deadline_s=900.0)
    assert deadline_promise(state, make, spec, draws=2).kept


def test_a_deadline_beyond_the_share_is_not_promised_but_a_later_one_is() -> None:
    state, make = two_users(floor=0.8)
    spec = a_job(4, name="b", duration_s=500.0, user="bob", deadline_s=540.0)
    found = deadline_promise(state, make, spec, draws=2)
    assert not found.kept
    assert found.earliest_s is not None
    assert found.earliest_s > 540.0
    later = msgspec.structs.replace(spec, deadline_s=found.earliest_s)
    assert deadline_promise(state, make, later, draws=2).kept


def test_a_deadline_of_a_job_that_is_there_counts_from_its_submission() -> None:
    state, make = two_users(floor=0.8)
    spec = msgspec.structs.replace(state.jobs["a3"].spec, deadline_s=900.0)
    assert not deadline_promise(state, make, spec, job="a3", now=101.0, draws=2).kept
    spec = msgspec.structs.replace(spec, deadline_s=1400.0)
    assert deadline_promise(state, make, spec, job="a3", now=101.0, draws=2).kept


def test_the_preview_tells_the_latest_start() -> None:
    records = [Record(seq=0, at=0.0, event=NodeJoined(node=a_cluster("1x4").nodes[0]))]
    firm = a_job(4, name="firm", duration_s=9000.0, preemptible=False, time_limit_s=9000.0)
    records.append(Record(seq=1, at=0.0, event=JobSubmitted(job="firm", spec=firm)))
    make = scheduler_with(CoadaptPolicy)
    state = folded(records, 0.0)
    begun = make(state)
    begun.handle(Record(seq=2, at=0.0, event=Woke()))
    chosen, _ = preview(state, make, a_job(4, duration_s=100.0), (), draws=0)
    assert chosen.latest_start_at is not None
    assert 9000.0 <= chosen.latest_start_at <= 9000.0 + 200.0


def test_job_of_unknown_length_is_over_by_its_time_limit() -> None:
    """Nothing is known of a plain script but that it is stopped after five minutes."""
    node = Record(seq=0, at=0.0, event=NodeJoined(node=a_cluster("1x1").nodes[0]))
    state, make = folded([node], 1.0), scheduler_with(lambda: CoadaptPolicy(floor=0.8))
    spec = JobSpec(name="b", command=("sh", "run"), time_limit_s=300.0, deadline_s=1800.0, preemptible=False)
    found = deadline_promise(state, make, spec, draws=4)
    assert found.kept, found
    assert found.earliest_s is not None
    assert found.earliest_s < 600.0
    short = msgspec.structs.replace(spec, deadline_s=200.0)
    assert not deadline_promise(state, make, short, draws=4).kept
    (outlook,) = forward(state, make, add=[("b", spec)], draws=1).values()
    assert outlook.note == "Its duration is not known; its time limit ends it after 5m at the latest."


def test_job_that_is_longer_than_its_time_limit_is_promised_no_deadline_and_that_is_why() -> None:
    state, make = two_users(floor=0.8)
    spec = a_job(1, name="b", duration_s=1000.0, user="bob", deadline_s=7200.0, time_limit_s=300.0)
    found = deadline_promise(state, make, spec, draws=2)
    assert (found.kept, found.earliest_s, found.at_limit) == (False, None, True)
    assert found.note == "It is stopped at its time limit of 5m, before its predicted end."
