"""Optimus on curves small enough to check by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import (
    SERVER,
    Batch,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    Record,
    Resources,
    Role,
    parse_cluster,
)
from coadapt.policies import Memory, OptimusPolicy, Proposal
from coadapt.policies.optimus import SAMPLES
from coadapt.scheduler import SchedulerState

BATCH = Batch(initial=32, max=1024, per_gpu_min=8, per_gpu_max=64)


def a_curve(steps: float, *times_s: float, fitted: bool = True) -> Any:
    """A curve with ``times_s[k - 1]`` seconds per step on k workers; for ever beyond."""
    return SimpleNamespace(
        fitted=fitted,
        remaining_steps=lambda batch, work=None: steps,
        step_time_at=lambda batch, nodes, replicas, gpu_type: (*times_s, *[1e9] * 64)[replicas - 1],
    )


def a_state(specs: dict[str, JobSpec], cluster: str) -> SchedulerState:
    state = SchedulerState()
    nodes = [NodeJoined(node=node) for node in parse_cluster(cluster).nodes]
    for seq, event in enumerate([*nodes, *(JobSubmitted(job=n, spec=s) for n, s in specs.items())]):
        state.apply(Record(seq=seq, at=0.0, event=event))
    return state


def elastic(name: str, *, batch: int = 64, most: int = 16) -> JobSpec:
    return JobSpec(name=name, roles=(Role(min=1, max=most),), requested=1, requested_batch=batch, batch=BATCH)


def decide(state: SchedulerState, curves: dict[str, Any]) -> Proposal:
    return OptimusPolicy(oracle=True).decide(state, curves, Memory(), lambda: pytest.fail("draws nothing"))


def sizes(proposal: Proposal) -> dict[str, int]:
    return {name: allocation.workers for name, allocation in proposal.allocations.items()}


def test_optimus_gives_each_worker_to_the_largest_saving() -> None:
    # one each, then: a saves 10 x (8-5)=30, b 100 x (1-0.8)=20; a again 10 x (5-4)=10; b again 100 x .05=5
    state = a_state({"a": elastic("a"), "b": elastic("b")}, "1x5")
    proposal = decide(state, {"a": a_curve(10, 8, 5, 4, 3.9), "b": a_curve(100, 1, 0.8, 0.75)})
    assert sizes(proposal) == {"b": 2, "a": 3}
    assert list(proposal.allocations) == ["b", "a"]  # small jobs are placed first
    assert proposal.reasons["a"].numbers == {"remaining_s": 40.0, "saved_s": 40.0}


def test_optimus_stops_where_nothing_is_saved() -> None:
    state = a_state({"a": elastic("a")}, "1x8")
    assert sizes(decide(state, {"a": a_curve(10, 8, 5, 6, 1)})) == {"a": 2}


def test_optimus_feeds_no_worker_less_than_the_least_batch() -> None:
    state = a_state({"a": elastic("a", batch=24)}, "1x8")
    assert sizes(decide(state, {"a": a_curve(10, 8, 7, 6, 5, 4, 3)})) == {"a": 3}


def test_optimus_serves_in_order_when_there_are_more_jobs_than_gpus() -> None:
    state = a_state({name: elastic(name) for name in "abc"}, "1x2")
    assert sizes(decide(state, {name: a_curve(10, 2, 1) for name in "abc"})) == {"a": 1, "b": 1}


def test_optimus_leaves_an_unmeasured_job_at_its_least_size() -> None:
    state = a_state({"a": elastic("a"), "b": elastic("b")}, "1x4")
    curves = {"a": a_curve(10, 8, 1, 0.5, 0.1, fitted=False), "b": a_curve(10, 2, 1.9, 1.8)}
    assert sizes(decide(state, curves)) == {"a": 1, "b": 3}


def test_optimus_names_only_jobs_whose_size_changes() -> None:
    state = a_state({"a": elastic("a"), "b": elastic("b")}, "1x3")
    curves = {"a": a_curve(10, 8, 5), "b": a_curve(1, 1)}
    from coadapt.placement import MostFreePlacer
    from coadapt.scheduler.cycle import decide as decide_whole

    policy = OptimusPolicy(oracle=True)
    first, _ = decide_whole(state, policy, MostFreePlacer(), curves, seed=0, warm=None)
    assert {name: target.replicas for name, target in first.targets.items()} == {"a": 2, "b": 1}
    state.apply(Record(seq=99, at=0.0, event=first))
    assert decide(state, curves).allocations == {}


def served(name: str) -> JobSpec:
    roles = (
        Role(min=1, max=8, demand=Resources(gpus=1, cpus=2.0)),
        Role(name=SERVER, min=1, max=8, demand=Resources(gpus=0, cpus=4.0)),
    )
    return JobSpec(name=name, roles=roles, requested=1, requested_batch=64, batch=BATCH, sync="ps")


def a_server_curve(measured: int) -> Any:
    """Steps per second grow with the smaller of servers and workers."""
    return SimpleNamespace(
        fitted=True,
        measured_sizes=measured,
        remaining_steps=lambda batch, work=None: 100.0,
        steps_per_s=lambda servers, workers, batch: min(servers, workers) + 0.1 * max(servers, workers),
    )


@pytest.mark.parametrize("measured", range(len(SAMPLES)))
def test_optimus_measures_a_job_with_servers_at_the_next_sample(measured: int) -> None:
    state = a_state({"a": served("a")}, "2x4")
    allocation = decide(state, {"a": a_server_curve(measured)}).allocations["a"]
    counts = {share.role: share.count for share in allocation.shares}
    assert (counts[SERVER], counts["worker"]) == SAMPLES[measured]


def test_optimus_balances_workers_and_servers() -> None:
    # servers need no GPU and are limited by nothing else: 4 GPUs are 4 workers, and as many servers match
    state = a_state({"a": served("a")}, "1x4")
    allocation = decide(state, {"a": a_server_curve(len(SAMPLES))}).allocations["a"]
    counts = {share.role: share.count for share in allocation.shares}
    assert counts["worker"] == 4
    assert counts[SERVER] >= 4


def a_loss_job(name: str, target: str) -> JobSpec:
    return replace(elastic(name), target=target)


def by_work(declared: float) -> Any:
    """A curve on which a step is one unit of work, half as long on two workers."""
    return SimpleNamespace(
        fitted=True,
        remaining_steps=lambda batch, work=None: declared if work is None else work,
        step_time_at=lambda batch, nodes, replicas, gpu_type: 1.0 / replicas,
    )


def a_loss_curve(until: int) -> tuple[tuple[float, float], ...]:
    """Falls as 1 / (0.01 k + 1): to 0.5 after 100, to 0.25 after 300."""
    return tuple((float(k), 1 / (0.01 * k + 1)) for k in range(0, until + 1, 10))


def remaining_s(state: SchedulerState, target: str, *, loss_curve: bool = True) -> float:
    policy = OptimusPolicy(loss_curve=loss_curve)
    proposal = policy.decide(state, {"a": by_work(7.0)}, Memory(), lambda: pytest.fail("draws nothing"))
    return proposal.reasons["a"].numbers["remaining_s"]


@pytest.mark.parametrize(("target", "left"), [("loss<=0.5", 50.0), ("loss<=0.25", 250.0)])
def test_optimus_predicts_the_steps_left_from_the_loss_curve(target: str, left: float) -> None:
    state = a_state({"a": a_loss_job("a", target)}, "1x1")
    state.jobs["a"].course, state.jobs["a"].work = a_loss_curve(50), 50.0
    assert remaining_s(state, target) == pytest.approx(left, rel=0.05)
    assert remaining_s(state, target, loss_curve=False) == 7.0


@pytest.mark.parametrize(
    ("target", "points"), [("loss<=0.5", 10), ("accuracy>=0.9", 50)], ids=["too few points", "not a loss"]
)
def test_optimus_takes_the_declared_steps_where_no_loss_curve_tells(target: str, points: int) -> None:
    state = a_state({"a": a_loss_job("a", target)}, "1x1")
    state.jobs["a"].course, state.jobs["a"].work = a_loss_curve(points), float(points)
    assert remaining_s(state, target) == 7.0


def test_optimus_refuses_an_oracle_with_a_loss_curve() -> None:
    with pytest.raises(InputError, match="oracle and loss_curve exclude each other"):
        OptimusPolicy(oracle=True, loss_curve=True)
