"""Pollux: sizes grow by doubling, fair shares are respected, rigid and pinned jobs are served."""

from __future__ import annotations

import math

import pytest

from coadapt.errors import InputError
from coadapt.model import DecisionMade, JobSpec, Role, parse_cluster
from coadapt.policies.optimus import OptimusPolicy
from coadapt.policies.pollux.policy import PolluxPolicy
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from coadapt.store import MemoryLog
from tests.unit.policies.harness import a_submission, finished, run


def small(**options: object) -> PolluxPolicy:
    return PolluxPolicy(population=30, generations=30, **options)  # type: ignore[arg-type]


def a_task(name: str, task: str = "cifar10") -> JobSpec:
    return spec_for(name, shipped_profiles()[task], task, replicas=1, batch=128 if task == "cifar10" else 256)


def sizes(log: MemoryLog, job: str) -> list[int]:
    return [
        r.event.targets[job].replicas
        for r in log.read()
        if isinstance(r.event, DecisionMade) and job in r.event.targets
    ]


def simulated(jobs: list[tuple[float, str, JobSpec]], cluster: str = "4x4") -> MemoryLog:
    log = MemoryLog()
    setting = Setting(interval_s=60, change_cost=constant(30))
    simulate(jobs, parse_cluster(cluster), small(), log, truths=shipped_profiles(), setting=setting)
    return log


def test_pollux_starts_with_one_gpu_and_at_most_doubles_what_was_measured():
    log = simulated([(0.0, "a", a_task("a"))])
    steps = [size for size in sizes(log, "a") if size]
    assert steps[0] == 1
    assert max(steps) > 4
    assert all(after <= 2 * max(steps[: i + 1]) for i, after in enumerate(steps[1:]))


def test_pollux_shares_the_cluster_between_equal_jobs():
    log = simulated([(float(i), f"j{i}", a_task(f"j{i}")) for i in range(4)], cluster="1x4")
    first = next(
        r.event for r in log.read() if isinstance(r.event, DecisionMade) and len(r.event.targets) > 1
    )
    assert all(placement.replicas == 1 for placement in first.targets.values())


def test_pollux_runs_rigid_jobs_at_their_size_or_not_at_all():
    result = run(
        small(),
        [a_submission("wide", gpus=8, duration_s=500), a_submission("one", at=1.0)],
        cluster="2x4",
        interval_s=60,
    )
    assert set(sizes(result.log, "wide")) <= {0, 8}
    assert None not in finished(result).values()


def test_pollux_gives_a_job_known_by_its_duration_the_size_it_was_recorded_at():
    elastic = JobSpec(name="e", roles=(Role(max=8),), requested=4, duration_s=1000)
    result = run(small(), [(0.0, "e", elastic), (0.0, "f", elastic)], cluster="1x4", interval_s=60)
    assert set(sizes(result.log, "e")) | set(sizes(result.log, "f")) <= {0, 4}


def test_pollux_leaves_jobs_that_may_not_be_preempted_alone():
    fixed = a_submission("fixed", gpus=2, duration_s=1000, preemptible=False)
    others = [a_submission(f"o{i}", at=70.0 + i, gpus=2, duration_s=100) for i in range(4)]
    result = run(small(), [fixed, *others], cluster="1x4", interval_s=60)
    assert sizes(result.log, "fixed") == [2]
    assert None not in finished(result).values()


def test_pollux_refuses_a_cluster_of_several_gpu_types():
    with pytest.raises(InputError, match="one GPU type"):
        run(small(), [a_submission("a")], cluster="1x4:t4,1x4:a100", interval_s=60)


@pytest.mark.parametrize(
    "wrong",
    [{"population": 0}, {"generations": 0}, {"max_nodes_per_job": 0}, {"p": math.nan}, {"patience": -1}],
)
def test_pollux_refuses_options_it_cannot_search_with(wrong: dict[str, float]):
    with pytest.raises(InputError, match="must be at least 1"):
        PolluxPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [small(), OptimusPolicy()])
def test_a_job_alone_grows_also_when_decisions_are_made_on_events(policy: PolluxPolicy | OptimusPolicy):
    jobs, log = [(0.0, "a", a_task("a"))], MemoryLog()
    simulate(
        jobs,
        parse_cluster("4x4"),
        policy,
        log,
        truths=shipped_profiles(),
        setting=Setting(change_cost=constant(30)),
    )
    assert max(sizes(log, "a")) > 1
