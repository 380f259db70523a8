"""Sia's setting: what a restart costs, how slow tasks are, and what the workloads are made of."""

from __future__ import annotations

import math
from functools import partial

import pytest
from benchmarks import mixed

from coadapt.model import JobSpec, Placement
from coadapt.policies import FifoPolicy, SiaPolicy
from tests import builders
from tests.data import data_dir

needs_data = pytest.mark.skipif(data_dir() is None, reason="the shared measurements are not here")


on = partial(builders.on, gpu_type="t4")


def test_restart_cost_is_charged_unless_only_nodes_change():
    bert = JobSpec(name="bert", profile="bert")
    assert mixed.restart_cost(bert, Placement(), on(("n0", 2))) == 120.0
    assert mixed.restart_cost(bert, on(("n0", 2)), on(("n1", 2))) == 0.0
    assert mixed.restart_cost(bert, on(("n0", 2)), on(("n0", 2), gpu_type="rtx")) == 120.0
    assert mixed.restart_cost(bert, on(("n0", 2)), on(("n0", 1), ("n1", 1))) == 120.0
    assert mixed.restart_cost(JobSpec(name="x"), Placement(), on(("n0", 1))) == 30.0


@pytest.mark.data
@needs_data
def test_slowed_tasks_have_that_much_more_to_do():
    examples = {"cifar10": 50_000, "bert": 88_644}
    for name, factor in (("cifar10", 1.8), ("bert", 1.2)):
        task = mixed.tasks()[name]
        initial, marks = task.limits("t4").initial, task.epoch_marks()
        assert task.data_size == pytest.approx(factor * examples[name], rel=0.01)
        assert marks[-1] == pytest.approx(task.data_size * task.epochs / initial, rel=0.02)
        assert marks[-1] == pytest.approx(task.steps_until(initial, task.epochs - 1), rel=0.02)
    rate = mixed.tasks()["imagenet"].one_gpu()
    assert rate["a100"] > rate["rtx"] > 0


@pytest.mark.data
@needs_data
@pytest.mark.parametrize("name", mixed.WORKLOADS)
def test_workloads_are_as_described(name: str):
    jobs = mixed.workload(name)
    assert [at for at, _, _ in jobs] == sorted(at for at, _, _ in jobs)
    assert len({job for _, job, _ in jobs}) == len(jobs) == {"rate10-1": 80, "philly-1": 160}.get(name, 120)
    kinds = {spec.profile for _, _, spec in jobs}
    assert "ncf" not in kinds
    if name in mixed.GENERATED and int(name[-1]) % 2 == 0:
        assert "imagenet" not in kinds
    assert jobs == mixed.workload(name)


@pytest.mark.data
@needs_data
def test_run_takes_any_policy_and_tells_the_same_again():
    jobs = mixed.workload("rate10-1")[:3]
    for policy in (SiaPolicy(), FifoPolicy()):
        one, other = (mixed.figures(mixed.run(jobs, policy)) for _ in range(2))
        assert {k: v for k, v in one.items() if "cpu" not in k} == {
            k: v for k, v in other.items() if "cpu" not in k
        }
        assert 0 < one["p50_jct_s"] <= one["p99_jct_s"] <= one["makespan_s"] < math.inf
        assert one["num_jobs"] == 3


@pytest.mark.data
@needs_data
def test_measured_is_what_the_released_simulator_gave():
    assert mixed.measured("sia", "rate10-1")["avg_jct_s"] == 1639.4
    with pytest.raises(KeyError):
        mixed.measured("sia", "philly-1")
