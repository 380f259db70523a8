"""Jobs whose gradients get noisier as they go on: a policy that adapts batch sizes makes them faster, and that is foretold."""

from __future__ import annotations

import math

import pytest

from coadapt.configure import FittedCurve
from coadapt.model import Configuration, Measurement
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.prediction.remaining.work import evidence_for
from coadapt.prediction.step_time import step_table
from coadapt.scheduler import Scheduler, SchedulerState
from coadapt.simulation.engine.predicted_training import Growth, Luck, PredictedTraining
from coadapt.simulation.lookahead import forward
from coadapt.simulation.run import simulate
from coadapt.simulation.truth.profiles import profile, spec_for
from coadapt.store import MemoryLog
from tests.builders import PLACERS, a_cluster, a_trained_job, on

M0 = 32


def a_curve(phi: float, done: float = 640.0) -> FittedCurve:
    """Of a job with 6,400 examples to do, with gradients as they were when ``done`` was."""
    spec = a_trained_job(1, at_most=4)
    table = step_table.EMPTY_TABLE
    for replicas, atomic in ((1, 16), (1, 32), (2, 16), (2, 32), (2, 64)):
        where = Configuration(nodes=1, replicas=replicas, atomic_batch=atomic)
        sync_s = 0.25 if replicas > 1 else 0.0
        table = step_table.observe(
            table, Measurement(config=where, step_s=atomic / 32 + sync_s, sync_s=sync_s, count=10)
        )
    return FittedCurve(
        spec=spec,
        table=table,
        grad_sqr=1.0,
        grad_var=phi / M0,
        grad_batch=M0,
        evidence=evidence_for(spec, done=done),
    )


def test_job_is_as_fast_as_its_curve_says_now_and_faster_later() -> None:
    curve = a_curve(phi=64.0)
    growth = Growth(curve, 640.0, 5760.0)
    here = on(("n0", 2))
    assert growth.quicker(640.0, here) == pytest.approx(1.0)
    assert 1.0 < growth.quicker(2000.0, here) < growth.quicker(6000.0, here)
    # never faster than if every example counted
    examples_per_s = float(curve.step_time_at(256, 1, 2)) / 256
    assert float(curve.goodput(1, 2)) * growth.quicker(6000.0, here) <= 1 / examples_per_s * 1.01


def test_noise_scale_goes_on_from_the_present_one_by_the_usual_slope_and_the_luck_of_a_draw() -> None:
    curve = a_curve(phi=64.0)
    assert Growth(curve, 640.0, 5760.0).phi(640.0) == pytest.approx(64.0)
    assert Growth(curve, 640.0, 5760.0).phi(6400.0) == pytest.approx(64.0 * 10**0.4)
    assert Growth(curve, 640.0, 5760.0, slope=-0.4).phi(6400.0) == pytest.approx(64.0)
    unknown = FittedCurve(spec=a_trained_job(), table=step_table.EMPTY_TABLE)
    assert Growth(unknown, 0.0, 6400.0).quicker(3200.0, on("n0")) == 1.0


def test_predicted_training_ends_sooner_the_more_its_noise_grows_and_reports_larger_batches() -> None:
    ends = {}
    for slope in (-0.4, 0.0, 0.4):
        training = PredictedTraining(a_curve(phi=64.0), 5760.0, 640.0, Luck(slope=slope))
        training.place(on(("n0", 2)))
        training.resume(0.0)
        reports = []
        while not training.finished:
            ends[slope] = training.next_at
            report = training.advance(training.next_at)
            reports += [report] if report is not None else []
        if slope == 0.0:
            assert reports[-1].config.batch > reports[0].config.batch
            grown = [r.grad_var for r in reports]
            assert None not in grown
            assert grown == sorted(grown)  # type: ignore[type-var]
    assert ends[0.4] < ends[0.0] < ends[-0.4]


@pytest.mark.parametrize(("cut", "near"), [(0.15, 0.4), (0.4, 0.1)])
def test_adaptive_run_cut_early_is_foretold_to_end_when_it_does(cut: float, near: float) -> None:
    """A shipped task, measured on real GPUs, whose noise scale grows many times over; without growth 70 and 12% too long."""
    truth = profile("cifar10")
    spec = spec_for("job", truth, "cifar10", replicas=2, batch=truth.limits("t4").initial, gpu_type="t4")
    log = MemoryLog()
    placer = PLACERS[CoadaptPolicy.placer]
    ended = simulate(
        [(0.0, "job", spec)],
        a_cluster("1x4:t4"),
        CoadaptPolicy(),
        log,
        placer=placer(),
        truths={"cifar10": truth},
    )
    state = SchedulerState()
    for record in log.read():
        if record.at <= cut * ended.state.now:
            state.apply(record)
    outlooks = forward(state, lambda made: Scheduler(CoadaptPolicy(), placer(), state=made), draws=0)
    found = outlooks["job"]
    actual_s = (ended.state.jobs["job"].finished_at or math.inf) - state.now
    assert found.finishes_at is not None
    assert found.finishes_at - state.now == pytest.approx(actual_s, rel=near)
