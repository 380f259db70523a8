"""Dominant resource fairness between teams."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.model import JobSubmitted, Node, NodeJoined, Record, Resources
from coadapt.policies import FairSharePolicy, Memory
from coadapt.scheduler import SchedulerState
from tests.unit.policies.harness import Submission, a_submission, finished, reasons, run, started


def _state(jobs: list[Submission], node: Node) -> SchedulerState:
    state = SchedulerState()
    events = [NodeJoined(node=node), *(JobSubmitted(job=name, spec=spec) for _, name, spec in jobs)]
    for seq, event in enumerate(events):
        state.apply(Record(seq=seq, at=0.0, event=event))
    return state


def _teams(team: str, count: int, **fields: object) -> list[Submission]:
    return [a_submission(f"{team}{n}", team=team, **fields) for n in range(count)]  # type: ignore[arg-type]


def _started_by_team(policy: FairSharePolicy, state: SchedulerState) -> dict[str, int]:
    chosen = policy.decide(state, {}, Memory(), lambda: pytest.fail("draws nothing")).allocations
    counts: dict[str, int] = {}
    for name in chosen:
        team = state.jobs[name].spec.team
        counts[team] = counts.get(team, 0) + 1
    return counts


def test_fair_share_divides_equally_whoever_came_first() -> None:
    state = _state([*_teams("a", 8), *_teams("b", 8)], Node(name="n", gpus=8))
    assert _started_by_team(FairSharePolicy(), state) == {"a": 4, "b": 4}


def test_fair_share_weights_multiply_a_share() -> None:
    state = _state([*_teams("a", 9), *_teams("b", 9)], Node(name="n", gpus=9))
    assert _started_by_team(FairSharePolicy(weights={"b": 2}), state) == {"a": 3, "b": 6}


def test_fair_share_equalises_dominant_shares_as_in_the_drf_paper() -> None:
    # the paper's example: 9 CPUs, 18 GB; tasks of <1 CPU, 4 GB> and <3 CPU, 1 GB>: 3 and 2 tasks
    node = Node(name="n", gpus=0, cpus=9.0, memory_bytes=18.0)
    first = _teams("a", 9, demand=Resources(gpus=0, cpus=1.0, memory_bytes=4.0))
    second = _teams("b", 9, demand=Resources(gpus=0, cpus=3.0, memory_bytes=1.0))
    state = _state([*first, *second], node)
    assert _started_by_team(FairSharePolicy(), state) == {"a": 3, "b": 2}


def test_fair_share_passes_over_what_does_not_fit() -> None:
    jobs = [
        a_submission("wide", gpus=4, team="a"),
        a_submission("b", 1, gpus=1, team="b"),
        a_submission("c", 1, gpus=4, team="c"),
    ]
    assert started(run(FairSharePolicy(), jobs)) == {"wide": 0.0, "b": 100.0, "c": 200.0}


def test_fair_share_without_preemption_waits() -> None:
    jobs = [*_teams("a", 4, duration_s=1000), a_submission("b", 10, team="b")]
    assert started(run(FairSharePolicy(), jobs))["b"] == 1000.0


def test_fair_share_preempts_the_newest_of_the_rich_after_the_grace() -> None:
    jobs = [*_teams("a", 4, duration_s=1000), a_submission("b", 10, gpus=2, duration_s=100, team="b")]
    result = run(FairSharePolicy(preempt=True, min_run_s=60.0), jobs)
    assert started(result)["b"] == 60.0
    assert reasons(result, "a3") == [(0.0, "fair-share"), (60.0, "preempted"), (160.0, "fair-share")]
    assert finished(result) == {"a0": 1000.0, "a1": 1000.0, "a2": 1100.0, "a3": 1100.0, "b": 160.0}


def test_fair_share_does_not_preempt_beyond_the_fair_share() -> None:
    jobs = [*_teams("a", 4, duration_s=1000), a_submission("b", 10, gpus=3, team="b")]
    assert started(run(FairSharePolicy(preempt=True, min_run_s=60.0), jobs))["b"] == 1000.0


def test_fair_share_refuses_senseless_options() -> None:
    with pytest.raises(InputError, match="weight"):
        FairSharePolicy(weights={"a": 0})
    with pytest.raises(InputError, match="team or by user"):
        FairSharePolicy(by="project")
