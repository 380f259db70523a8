"""Jobs with parameter servers in the simulator, and the curve fitted from what they report."""

from __future__ import annotations

import math

import pytest

from coadapt.configure import ServerCurve
from coadapt.errors import InputError
from coadapt.model import (
    SERVER,
    Batch,
    Configuration,
    JobFinished,
    JobSpec,
    Measurement,
    Placement,
    Resources,
    Role,
    Slot,
    parse_cluster,
)
from coadapt.policies.optimus import OptimusPolicy
from coadapt.prediction import parameter_server
from coadapt.prediction.remaining.work import evidence_for
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import ServedTraining, TrainingOptions
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.parameter_server_speed import ParameterServerTruth, parameter_server_truth
from coadapt.store import MemoryLog

PLACE = Placement(slots=(Slot(node="n0", replicas=2), Slot(node="n1", replicas=1, role=SERVER)))


def a_served_job(sync: str = "ps", **fields: object) -> JobSpec:
    roles = (Role(max=8), Role(name=SERVER, max=8, demand=Resources(gpus=0)))
    limits = Batch(initial=128, max=128, per_gpu_min=4, per_gpu_max=64, mode="fixed")
    values = {
        "name": "s",
        "profile": "resnet-50",
        "sync": sync,
        "requested_batch": 128,
        "batch": limits,
        "epochs": 1.0,
        "data_size": 128_000,
        "roles": roles,
    }
    return JobSpec(**{**values, **fields})  # type: ignore[arg-type]


def on_t4(gpu_type: str) -> ParameterServerTruth:
    return parameter_server_truth("resnet-50")


def test_served_training_takes_steps_times_step_time():
    truth = parameter_server_truth("resnet-50")
    training = ServedTraining(a_served_job(), lambda gpu_type: truth, TrainingOptions(report_s=10))
    training.place(PLACE)
    training.resume(100.0)
    report = training.advance(training.next_at)
    assert report is not None
    assert (report.config.servers, report.config.replicas, report.config.batch) == (1, 2, 128)
    assert report.step_s == truth.step([2, 0], [0, 1], 128)
    # 1,000 steps of 128 examples
    assert training.next_at == pytest.approx(100.0 + 1000 * report.step_s)
    training.advance(training.next_at)
    assert training.finished


def test_served_training_falls_back_to_what_was_saved_when_lost():
    training = ServedTraining(a_served_job(), on_t4, TrainingOptions())
    training.place(PLACE)
    training.resume(0.0)
    training.pause(50.0)
    saved = training.work
    assert saved > 0
    training.resume(60.0)
    training.pause(90.0, lost=True)
    assert training.work == saved


def test_asynchronous_workers_update_more_often_than_synchronous_ones():
    async_truth = parameter_server_truth("vgg-16", asynchronous=True)
    assert isinstance(async_truth, ParameterServerTruth)
    assert async_truth.steps_per_s([4], [2], 32) > parameter_server_truth("vgg-16").steps_per_s(
        [4], [2], 4 * 32
    )


def test_served_job_without_declared_work_is_refused():
    with pytest.raises(InputError, match="epochs"):
        ServedTraining(a_served_job(epochs=None), on_t4, TrainingOptions())


def test_server_curve_predicts_the_truth_it_was_measured_from():
    truth = parameter_server_truth("resnet-50")
    table = parameter_server.ServerTable()
    for p, w in ((1, 1), (1, 2), (2, 2), (2, 4), (4, 2), (4, 4)):
        apart = [0] * p + [1] * w, [1] * p
        config = Configuration(nodes=w, replicas=w, atomic_batch=128 // w, servers=p)
        table = parameter_server.observe(table, Measurement(config=config, step_s=truth.step(*apart, 128)))
    curve = ServerCurve(spec=a_served_job(), table=table, evidence=evidence_for(a_served_job(), done=28_000))
    assert curve.fitted
    assert curve.measured_sizes == 6
    assert curve.steps_per_s(3, 3, 128) == pytest.approx(
        truth.steps_per_s([0] * 3 + [1] * 3, [1] * 3, 128), rel=0.05
    )
    assert curve.remaining_steps(128) == pytest.approx(100_000 / 128)


def test_server_curve_is_a_guess_before_it_is_fitted():
    curve = ServerCurve(spec=a_served_job(data_size=None), table=parameter_server.ServerTable())
    assert not curve.fitted
    assert curve.max_profiled_replicas == 0
    assert curve.remaining_work() == math.inf


def test_optimus_samples_served_jobs_and_finishes_them():
    log = MemoryLog()
    jobs = [
        (0.0, "a", a_served_job(data_size=400_000)),
        (100.0, "b", a_served_job("ps-async", data_size=400_000)),
    ]
    setting = Setting(interval_s=60, change_cost=constant(5.0))
    result = simulate(jobs, parse_cluster("4x4"), OptimusPolicy(), log, setting=setting)
    result.state.validate()
    assert sum(isinstance(r.event, JobFinished) for r in log.read()) == 2
    assert len(result.state.jobs["a"].server_table.rows) >= 5
