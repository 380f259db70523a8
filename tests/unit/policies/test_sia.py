"""Sia: configurations, growth by doubling, restarts that count, types that differ, rigid and pinned jobs."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from coadapt.configure import BatchChoice, Curve
from coadapt.errors import InputError
from coadapt.model import (
    ActionsIssued,
    DecisionMade,
    JobSpec,
    JobStarted,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    Role,
    StartJob,
    parse_cluster,
)
from coadapt.policies._base import Memory, Proposal
from coadapt.policies.sia import Config, Row, SiaPolicy, configurations, row_of
from coadapt.scheduler import SchedulerState
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from coadapt.store import MemoryLog
from tests.builders import on
from tests.unit.policies.harness import a_submission, finished, run


class Known:
    """A curve that says what it is told: goodput of one GPU by type, times replicas to a power."""

    fitted = True

    def __init__(self, one: dict[str, float], *, measured: int = 64, power: float = 1.0) -> None:
        self._one, self.max_profiled_replicas, self._power = one, measured, power

    def goodput(self, nodes: Any, replicas: Any, gpu_type: str = "gpu") -> Any:
        return self._one.get(gpu_type, 0.0) * np.asarray(replicas, float) ** self._power

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        raise NotImplementedError

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        raise NotImplementedError

    def remaining_steps(self, batch: int) -> float:
        return math.inf

    def remaining_work(self) -> float:
        return math.inf


def an_elastic_job(name: str = "a", **fields: Any) -> JobSpec:
    spec = spec_for(name, shipped_profiles()["cifar10"], "cifar10", replicas=1, batch=128)
    return msgspec.structs.replace(spec, **fields)


def a_rigid_job(gpus: int, **fields: Any) -> JobSpec:
    return a_submission("r", gpus=gpus, **fields)[2]


class World:
    """A state built event by event, and decisions in it."""

    def __init__(self, cluster: str, **jobs: JobSpec) -> None:
        self.state, self._seq = SchedulerState(), 0
        for node in parse_cluster(cluster).nodes:
            self.at(0.0, NodeJoined(node=node))
        for name, spec in jobs.items():
            self.at(0.0, JobSubmitted(job=name, spec=spec))

    def at(self, time: float, event: Any) -> None:
        self.state.apply(Record(seq=self._seq, at=time, event=event))
        self._seq += 1

    def give(self, time: float, job: str, placement: Placement, *, started: bool = True) -> None:
        """The job gets GPUs, and has them if ``started``."""
        self.at(time, DecisionMade(decision=self.state.decisions + 1, targets={job: placement}))
        action = StartJob(id=self.state.actions + 1, job=job, attempt=1, placement=placement)
        self.at(time, ActionsIssued(decision=self.state.decisions, actions=(action,)))
        if started:
            self.at(time, JobStarted(job=job, attempt=1))

    def decide(self, curves: dict[str, Curve], seed: int = 0, **options: Any) -> Proposal:
        return SiaPolicy(**options).decide(self.state, curves, Memory(), lambda: np.random.default_rng(seed))


def sizes(log: MemoryLog, job: str) -> list[tuple[str, int]]:
    return [
        (r.event.targets[job].gpu_type, r.event.targets[job].replicas)
        for r in log.read()
        if isinstance(r.event, DecisionMade) and job in r.event.targets
    ]


def test_configurations_are_powers_of_two_then_whole_nodes():
    found = configurations(World("3x4:t4,2x8:a100,2x6:odd").state)
    assert [(c.nodes, c.gpus) for c in found["t4"]] == [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12)]
    assert [(c.nodes, c.gpus) for c in found["a100"]] == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16)]
    assert [(c.nodes, c.gpus) for c in found["odd"]] == [(1, 1), (1, 2), (1, 4), (1, 6), (2, 12)]


def test_row_is_normalised_to_its_smallest_and_capped_at_twice_what_was_measured():
    world = World("2x4:t4,1x8:a100", a=an_elastic_job())
    curve = Known({"t4": 10.0, "a100": 30.0}, measured=2, power=0.5)
    row = row_of(world.state.active["a"], curve, configurations(world.state))
    assert {c.gpus for c in row.configs} == {1, 2, 4}
    assert min(row.gains) == row.gain(Config("t4", 1, 1)) == 1.0
    assert row.gain(Config("a100", 1, 4)) == pytest.approx(6.0)
    assert row.best == Config("a100", 1, 4)


def test_row_of_a_job_never_measured_offers_one_gpu_of_every_type_alike():
    class Unknown(Known):
        fitted = False

    world = World("2x4:t4,1x8:a100", a=an_elastic_job())
    row = row_of(world.state.active["a"], Unknown({}, measured=0), configurations(world.state))
    assert row.configs == (Config("t4", 1, 1), Config("a100", 1, 1))
    assert row.gains == (1.0, 1.0)


def test_row_of_a_rigid_job_has_one_configuration_per_type_that_counts_its_gpus():
    world = World("4x4:t4,1x8:a100", a=a_rigid_job(8))
    row = row_of(world.state.active["a"], Known({"t4": 1.0, "a100": 3.0}), configurations(world.state))
    assert row.configs == (Config("t4", 2, 8), Config("a100", 1, 8))
    assert row.gains == pytest.approx((8.0, 24.0))


def test_row_keeps_to_the_types_and_sizes_a_job_may_have():
    job = an_elastic_job(gpu_types=("a100",), roles=(Role(min=2, max=5),))
    world = World("2x4:t4,2x8:a100", a=job)
    row = row_of(world.state.active["a"], Known({"t4": 1.0, "a100": 1.0}), configurations(world.state))
    assert row.configs == (Config("a100", 1, 2), Config("a100", 1, 4))
    row = row_of(world.state.active["a"], Known({"a100": 1.0}, measured=0), configurations(world.state))
    assert row.configs == (Config("a100", 1, 2),)  # the least it can run with


def test_sia_puts_each_job_on_the_type_where_it_gains_most():
    world = World("1x4:t4,1x4:a100", a=an_elastic_job("a"), b=an_elastic_job("b"))
    curves: dict[str, Curve] = {"a": Known({"t4": 1.0, "a100": 1.0}), "b": Known({"t4": 1.0, "a100": 9.0})}
    proposal = world.decide(curves)
    assert proposal.placements["a"] == on(("n0", 4), gpu_type="t4")
    assert proposal.placements["b"] == on(("n1", 4), gpu_type="a100")
    assert proposal.reasons["b"].numbers["gain"] == 36.0
    assert proposal.reasons["a"].code == proposal.reasons["b"].code == "goodput"


def test_sia_shares_by_the_square_root_so_that_two_halves_beat_one_whole():
    world = World("1x4", a=an_elastic_job("a"), b=an_elastic_job("b"))
    curves: dict[str, Curve] = {name: Known({"gpu": 1.0}) for name in "ab"}
    given = {name: placement.replicas for name, placement in world.decide(curves).placements.items()}
    assert given == {"a": 2, "b": 2}


@pytest.mark.parametrize(("price", "sizes"), [(1.1, [2, 2]), (2.0, [1, 1, 1, 1])])
def test_sia_leaves_jobs_out_where_others_gain_more_unless_that_is_dear(price: float, sizes: list[int]):
    """A job gains price - 1 by one GPU, price - 0.71 by two: as published, 0.1 and 0.39, so that two jobs wait."""
    names = [f"j{i}" for i in range(4)]
    world = World("1x4", **{name: an_elastic_job(name) for name in names})
    proposal = world.decide({name: Known({"gpu": 1.0}) for name in names}, no_allocation=price)
    assert sorted(p.replicas for p in proposal.placements.values()) == sizes


def test_sia_weighs_a_restart_by_age():
    """From 2 to 4 GPUs gains 1.3: too little for a job of a minute (100 / 160 of it count), enough for one of an hour."""
    for age, moves in ((100.0, False), (3600.0, True)):
        world = World("1x4", a=an_elastic_job("a", profile="new"))
        world.give(0.0, "a", on(("n0", 2)))
        world.at(age, JobSubmitted(job="b", spec=a_rigid_job(9)))  # time goes on
        curves: dict[str, Curve] = {"a": Known({"gpu": 1.0}, power=math.log2(1.3)), "b": Known({"gpu": 1.0})}
        proposal = world.decide(curves, restart_s=60.0, restart_s_of={"new": 60.0})
        assert ("a" in proposal.placements) is moves


def test_restart_factor_counts_restarts_after_the_first_start_and_spares_the_young():
    world = World("1x4", a=an_elastic_job("a", profile="new"))
    job = world.state.active["a"]
    policy = SiaPolicy(restart_s_of={"new": 100.0})
    for changes, age, factor in ((0, 1000.0, 1000 / 1100), (1, 1000.0, 1000 / 1100), (3, 1000.0, 800 / 1100)):
        job.changes = changes
        assert policy._restart_factor(job, age) == pytest.approx(factor)
    job.changes = 20
    assert policy._restart_factor(job, 1000.0) == 0.0
    assert policy._restart_factor(job, 99.0) == policy._restart_factor(job, 0.0) == 1.0
    # a task nobody published: as measured, before that as assumed
    job.changes, job.change_cost_s = 1, None
    assert SiaPolicy(restart_s=50.0)._restart_factor(job, 1000.0) == pytest.approx(1000 / 1050)
    job.change_cost_s = 10.0
    assert SiaPolicy(restart_s=50.0)._restart_factor(job, 1000.0) == pytest.approx(1000 / 1010)


def test_sia_does_not_see_what_rounding_hides():
    """1/sqrt(64) = 0.1250 and 1/sqrt(66) = 0.1231 are 0.12 to two digits: the job stays where it is."""
    world = World("1x4:t4,1x4:a100", a=an_elastic_job("a"))
    configs = (Config("t4", 1, 1), Config("a100", 1, 1), Config("t4", 1, 2))
    row = Row(world.state.active["a"], configs, (64.0, 66.0, 1.0), configs[0])
    for digits, stays in ((2, True), (6, False)):
        here, there, _ = SiaPolicy(digits=digits, restart_s_of={"cifar10": 0.0})._costs(row, 1e6)
        assert (here < there) is stays


def test_sia_keeps_a_job_whose_restart_is_under_way():
    world = World("1x4:t4,1x4:a100", a=an_elastic_job("a"))
    world.give(0.0, "a", on("n0", gpu_type="t4"), started=False)
    world.at(3600.0, JobSubmitted(job="b", spec=an_elastic_job("b")))
    curves: dict[str, Curve] = {name: Known({"t4": 1.0, "a100": 9.0}) for name in "ab"}
    assert set(world.decide(curves).placements) == {"b"}
    world.at(3600.0, JobStarted(job="a", attempt=1))
    assert set(world.decide(curves).placements) == {"a", "b"}


def test_sia_draws_among_equals_by_the_decisions_own_generator():
    world = World("1x4:t4,1x4:a100", a=an_elastic_job("a"))
    curves: dict[str, Curve] = {"a": Known({"t4": 1.0, "a100": 1.0}, measured=0)}
    types = {seed: world.decide(curves, seed).placements["a"].gpu_type for seed in range(12)}
    assert set(types.values()) == {"t4", "a100"}
    assert types == {seed: world.decide(curves, seed).placements["a"].gpu_type for seed in range(12)}


def test_sia_with_a_positive_exponent_favours_the_job_that_gains_most():
    world = World("1x4", a=an_elastic_job("a"), b=an_elastic_job("b"))
    curves: dict[str, Curve] = {"a": Known({"gpu": 1.0}, power=0.1), "b": Known({"gpu": 1.0}, power=2.0)}
    given = {n: p.replicas for n, p in world.decide(curves, p=1.0).placements.items()}
    assert given == {"b": 4}


def test_sia_starts_with_one_gpu_and_at_most_doubles_what_was_measured():
    truths = shipped_profiles()
    log = MemoryLog()
    simulate(
        [(0.0, "a", an_elastic_job("a"))],
        parse_cluster("2x4:t4,1x8:a100"),
        SiaPolicy(),
        log,
        truths=truths,
        setting=Setting(interval_s=60, change_cost=constant(30)),
    )
    grown = [count for _, count in sizes(log, "a") if count]
    assert grown[0] == 1
    assert max(grown) > 4
    assert all(after <= 2 * max(grown[: i + 1]) for i, after in enumerate(grown[1:]))
    assert sizes(log, "a")[-2][0] == "a100"


def test_sia_runs_rigid_jobs_at_their_size_on_either_type():
    jobs = [a_submission(f"r{i}", gpus=3, duration_s=200) for i in range(6)]
    result = run(SiaPolicy(), jobs, cluster="2x4:t4,1x8:a100", interval_s=60)
    assert None not in finished(result).values()
    assert {count for i in range(6) for _, count in sizes(result.log, f"r{i}")} <= {0, 3}
    assert {kind for i in range(6) for kind, _ in sizes(result.log, f"r{i}")} >= {"t4", "a100"}


def test_sia_leaves_jobs_that_may_not_be_preempted_alone():
    fixed = a_submission("fixed", gpus=2, duration_s=1000, preemptible=False)
    others = [a_submission(f"o{i}", at=70.0 + i, gpus=2, duration_s=100) for i in range(4)]
    result = run(SiaPolicy(), [fixed, *others], cluster="1x4", interval_s=60)
    assert sizes(result.log, "fixed") == [("gpu", 2)]
    assert None not in finished(result).values()


def test_sia_refuses_what_it_cannot_place():
    world = World("1x4", a=a_rigid_job(1))
    server = Role(name="server", min=1, max=1)
    spec = msgspec.structs.replace(a_rigid_job(1), roles=(Role(), server))
    world.at(0.0, JobSubmitted(job="s", spec=spec))
    with pytest.raises(InputError, match="workers only; job 's'"):
        world.decide({"a": Known({"gpu": 1.0}), "s": Known({"gpu": 1.0})})


@pytest.mark.parametrize(
    "wrong",
    [
        {"p": 0.0},
        {"p": math.nan},
        {"no_allocation": 0.0},
        {"no_allocation": math.inf},
        {"restart_s": -1.0},
        {"restart_s_of": {"bert": -1.0}},
        {"digits": 0},
        {"digits": 9},
        {"clip": math.nan},
        {"gap": -0.1},
        {"solver_nodes": 0},
        {"every_s": 0.0},
    ],
)
def test_sia_refuses_options_it_cannot_work_with(wrong: dict[str, Any]):
    with pytest.raises(InputError, match=rf"sia: .*{next(iter(wrong))}"):
        SiaPolicy(**wrong)
