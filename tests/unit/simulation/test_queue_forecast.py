"""The forecast of a long queue: by hand where it is small, and in proportion to the number of jobs where it is long."""

from __future__ import annotations

import pytest

from coadapt.model import AnyEvent, JobSubmitted, NodeJoined, PauseRequested, Record
from coadapt.model.snapshot import Snapshot
from coadapt.placement.packed import PackedPlacer
from coadapt.policies import Curves, Memory, Proposal, Rng
from coadapt.policies._base import BasePolicy
from coadapt.scheduler import Scheduler, SchedulerState
from coadapt.simulation import lookahead
from coadapt.simulation.lookahead import forward, preview
from coadapt.simulation.queue_forecast import QueueForecast
from tests.builders import a_cluster, a_job

NOW = 1000.0


def state_of(*events: AnyEvent, cluster: str = "1x4") -> SchedulerState:
    state = SchedulerState()
    joined = [NodeJoined(node=node) for node in a_cluster(cluster).nodes]
    for seq, event in enumerate([*joined, *events]):
        state.apply(Record(seq=seq, at=NOW, event=event))
    return state


def submitted(name: str, gpus: int, duration_s: float, user: str = "ada", **more: object) -> JobSubmitted:
    return JobSubmitted(job=name, spec=a_job(gpus, name=name, user=user, duration_s=duration_s, **more))


def test_jobs_run_at_their_size_where_gpus_are_free_first() -> None:
    state = state_of(
        submitted("a", 2, 100.0), submitted("b", 2, 50.0), submitted("c", 4, 10.0), submitted("d", 1, 5.0)
    )
    run = QueueForecast(state, NOW).draw(0, 0)
    assert run.starts == {"a": NOW, "b": NOW, "c": NOW + 100, "d": NOW + 110}
    assert run.ends == {"a": NOW + 100, "b": NOW + 50, "c": NOW + 110, "d": NOW + 115}


def test_users_take_turns_and_their_priorities_order_their_own_jobs() -> None:
    jobs = [submitted(f"a{n}", 4, 10.0) for n in range(3)]
    state = state_of(*jobs, submitted("b0", 4, 10.0, "bob"), submitted("a9", 4, 10.0, priority=5))
    run = QueueForecast(state, NOW).draw(0, 0)
    assert sorted(run.starts, key=run.starts.__getitem__) == ["b0", "a9", "a0", "a1", "a2"]


def test_what_cannot_start_has_no_start_and_dependents_wait() -> None:
    state = state_of(
        submitted("early", 1, 30.0),
        submitted("late", 1, 10.0, after=("early",), priority=5),
        submitted("large", 5, 10.0),
        submitted("typed", 1, 10.0, gpu_types=("a100",)),
        submitted("held", 1, 10.0),
        PauseRequested(job="held"),
    )
    run = QueueForecast(state, NOW).draw(0, 0)
    assert run.starts == {"early": NOW, "late": NOW + 30}


def test_draws_differ_and_are_repeatable() -> None:
    state = state_of(*(JobSubmitted(job=f"j{n}", spec=a_job(1, name="j")) for n in range(20)))
    queue = QueueForecast(state, NOW)
    assert queue.draw(1, 0).ends == QueueForecast(state, NOW).draw(1, 0).ends
    assert queue.draw(1, 0).ends != queue.draw(2, 0).ends


class NoDecisions(BasePolicy):
    """Fails the test when it is asked for a decision: a long queue is not simulated."""

    placer = "packed"

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        raise AssertionError("a long queue is not simulated")


def _no_policy(state: SchedulerState) -> Scheduler:
    return Scheduler(NoDecisions(), PackedPlacer(), state=state)


def test_long_queue_is_forecast_without_a_single_decision_and_says_so() -> None:
    count = 10_000
    state = state_of(
        *(submitted(f"j-{n}", 1 + n % 4, 60.0, f"u{n % 20}") for n in range(count)), cluster="8x8"
    )
    found = forward(state, _no_policy, now=NOW)
    assert len(found) == count
    assert all(each.coarse for each in found.values())
    assert all(each.finishes is not None for each in found.values())
    first, last = found["j-0"], found[f"j-{count - 1}"]
    assert first.starts_at == NOW
    # 25,000 GPU-minutes on 64 GPUs
    assert last.finishes_at is not None
    assert last.finishes_at - NOW == pytest.approx(25_000 * 60 / 64, rel=0.1)
    chosen, others = preview(state, _no_policy, a_job(2, name="new", duration_s=60.0), (1, 4), now=NOW)
    assert chosen.coarse
    assert set(others) == {1, 4}


def test_long_queue_costs_in_proportion_to_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    duration = QueueForecast._duration
    monkeypatch.setattr(
        QueueForecast,
        "_duration",
        lambda self, job, *rest: (counted.append(job.id), duration(self, job, *rest))[1],
    )
    for count in (400, 800):
        counted.clear()
        state = state_of(*(submitted(f"j-{n}", 1, 60.0) for n in range(count)))
        forward(state, _no_policy, now=NOW)
        assert len(counted) == count * (lookahead._QUEUE_DRAWS + 1)


@pytest.mark.parametrize(("count", "runs"), [(1, 9), (100, 9), (120, 6), (150, 4)])
def test_more_jobs_are_simulated_less_often(count: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def run(*given: object, **options: int) -> object:
        made.append(options["draw"])
        return lookahead.QueueRun()

    monkeypatch.setattr(lookahead, "_run", run)
    state = state_of(*(submitted(f"j-{n}", 1, 60.0) for n in range(count)))
    found = forward(state, _no_policy, now=NOW)
    assert made == list(range(runs))
    assert not any(each.coarse for each in found.values())
