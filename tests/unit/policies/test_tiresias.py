"""Tiresias: golden scenarios by hand; the published figures where the data is."""

from __future__ import annotations

import csv

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.model import NodeJoined, NodeLost, Role, SpecChanged, parse_cluster
from coadapt.placement.most_free import MostFreePlacer
from coadapt.policies.tiresias import TiresiasPolicy
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.measured_tables import read_profiles
from coadapt.simulation.truth.profiles import spec_for
from coadapt.store import MemoryLog
from tests.data import data_dir
from tests.unit.policies.harness import a_submission, decisions, finished, reasons, run, started


def test_tiresias_demoted_job_gives_way_at_the_threshold() -> None:
    # a: 4 GPUs, threshold 400 GPU-s reached at t=100; b arrived at 10 and waits in queue 0
    jobs = [a_submission("a", gpus=4, duration_s=300), a_submission("b", 10, gpus=4, duration_s=50)]
    result = run(TiresiasPolicy(thresholds=(400.0,)), jobs)
    assert started(result)["b"] == 100.0
    assert finished(result) == {"a": 350.0, "b": 150.0}
    assert reasons(result, "a") == [(0.0, "started"), (100.0, "preempted"), (150.0, "started")]


def test_tiresias_queue_order_is_arrival_then_demotion() -> None:
    # a and b are demoted together at 100 (order of submission); c runs 100..160 (queue 0); then a, then b
    jobs = [
        a_submission("a", gpus=2, duration_s=150),
        a_submission("b", gpus=2, duration_s=120),
        a_submission("c", 50, gpus=3, duration_s=60),
    ]
    result = run(TiresiasPolicy(thresholds=(200.0,)), jobs, "1x4")
    # at 100: c needs 3 of 4; a and b (2 each) fit no more
    assert finished(result) == {"c": 160.0, "a": 210.0, "b": 180.0}


def test_tiresias_backfills_behind_a_job_that_does_not_fit() -> None:
    jobs = [
        a_submission("a", gpus=3, duration_s=100),
        a_submission("b", 1, gpus=2),
        a_submission("c", 2, gpus=1, duration_s=10),
    ]
    assert started(run(TiresiasPolicy(), jobs)) == {"a": 0.0, "b": 100.0, "c": 2.0}


def test_tiresias_never_preempts_what_may_not_be() -> None:
    jobs = [
        a_submission("a", gpus=4, duration_s=300, preemptible=False),
        a_submission("b", 10, gpus=4, duration_s=50),
    ]
    assert finished(run(TiresiasPolicy(thresholds=(400.0,)), jobs)) == {"a": 300.0, "b": 350.0}


def test_tiresias_forgets_jobs_that_ended() -> None:
    jobs = [a_submission("a", gpus=4, duration_s=300), a_submission("b", 10, gpus=4, duration_s=50)]
    result = run(TiresiasPolicy(thresholds=(400.0,)), jobs)
    assert result.state.memory == {}
    assert any("q/a" in decision.memory for _, decision in decisions(result))


def test_tiresias_promotes_a_job_that_waited_long_enough() -> None:
    # a ran 100 s until it was demoted; short jobs of queue 0 keep coming; after 100 s of waiting it returns
    stream = [a_submission(f"s{n}", 50 + 80 * n, gpus=4, duration_s=99) for n in range(6)]
    jobs = [a_submission("a", gpus=4, duration_s=150), *stream]
    waiting = finished(run(TiresiasPolicy(thresholds=(400.0,)), jobs))["a"]
    promoted = finished(run(TiresiasPolicy(thresholds=(400.0,), promote_after=1.0), jobs))["a"]
    assert waiting is not None
    assert promoted is not None
    # without: behind all six (6 x 99 s from 100 on); with: promoted at 200, behind s0 and s1 which came before
    assert waiting == 100 + 6 * 99 + 50
    assert promoted == 100 + 2 * 99 + 50


def test_tiresias_survives_the_loss_of_a_node() -> None:
    # a and b fill both nodes and are demoted at 25; a loses its node at 20, c runs where b was
    jobs = [
        a_submission("a", gpus=4, duration_s=100),
        a_submission("b", 1, gpus=4, duration_s=100),
        a_submission("c", 2, gpus=4),
    ]
    events = [(20.0, NodeLost(node="n0")), (40.0, NodeJoined(node=parse_cluster("1x4").nodes[0]))]
    result = run(TiresiasPolicy(thresholds=(100.0,)), jobs, "2x4", events=events)
    assert all(at is not None for at in finished(result).values())


def test_tiresias_sees_that_a_waiting_job_asks_for_less() -> None:
    _, _, wide = a_submission("b", gpus=4)
    wide = msgspec.structs.replace(wide, roles=(Role(min=1, max=4),))
    narrow = msgspec.structs.replace(wide, requested=1)
    events = [(20.0, SpecChanged(job="b", spec=narrow))]
    result = run(TiresiasPolicy(), [a_submission("a", gpus=3), (1.0, "b", wide)], events=events)
    assert started(result)["b"] == 20.0


def test_tiresias_gittins_orders_by_a_given_sample() -> None:
    # services are 10 or 1000 GPU-s: after 20 GPU-s a job is surely long, so a newcomer is worth more
    policy = TiresiasPolicy(gittins=True, discretised=False, samples=[10.0, 10.0, 1000.0], quantum_gpu_s=10.0)
    jobs = [a_submission("long", gpus=1, duration_s=1000), a_submission("new", 20, gpus=1, duration_s=10)]
    assert finished(run(policy, jobs, "1x1")) == {"new": 30.0, "long": 1010.0}


def test_tiresias_gittins_learns_services_from_jobs_that_ended() -> None:
    policy = TiresiasPolicy(gittins=True, discretised=False, quantum_gpu_s=10.0)
    jobs = [
        a_submission("first", duration_s=10),
        a_submission("long", 10, duration_s=1000),
        a_submission("new", 40, duration_s=10),
    ]
    result = run(policy, jobs, "1x1")
    # the sample is {10}: at service 30 nobody is known to end, at service 0 everybody within 10
    assert finished(result) == {"first": 10.0, "new": 50.0, "long": 1020.0}
    assert sorted(v for k, v in result.state.memory.items() if k.startswith("past/")) == [10.0, 10.0, 1000.0]


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": (5.0, 3.0)},
        {"thresholds": (0.0,)},
        {"queues": 3},
        {"promote_after": 0.0},
    ],
)
def test_tiresias_refuses_senseless_options(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        TiresiasPolicy(**options)  # type: ignore[arg-type]


@pytest.mark.data
def test_tiresias_reproduces_the_published_figure() -> None:
    data = data_dir()
    if data is None:
        pytest.skip("needs the measurements in ../shared/data")
    truths = read_profiles(data / "pollux")
    with (data / "pollux" / "workloads" / "tuned-0.5x-2.csv").open(newline="") as stream:
        jobs = [
            (
                float(row["time"]),
                row["name"],
                spec_for(
                    row["name"],
                    truths[row["application"]],
                    row["application"],
                    replicas=int(row["num_replicas"]),
                    batch=int(row["batch_size"]),
                ),
            )
            for row in csv.DictReader(stream)
        ]
    setting = Setting(interval_s=60.0, training=TrainingOptions(report_s=60.0, resolution_s=1.0))
    result = simulate(
        jobs,
        parse_cluster("16x4"),
        TiresiasPolicy(),
        log=MemoryLog(keep=False),
        placer=MostFreePlacer(),
        truths=truths,
        setting=setting,
    )
    times = [(job.finished_at or 0.0) - job.submitted_at for job in result.state.jobs.values()]
    assert sum(times) / len(times) == pytest.approx(2333.3, abs=0.05)
    assert max(times) == 38049
