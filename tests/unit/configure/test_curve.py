from __future__ import annotations

import math

import numpy as np
import pytest

from coadapt.configure import Curve, FittedCurve, RigidCurve
from coadapt.configure.best_batch import best_batch
from coadapt.errors import InvariantError
from coadapt.model import Batch, JobSpec
from coadapt.model.interval import Interval
from coadapt.prediction.remaining.past_jobs import Prior
from coadapt.prediction.remaining.work import evidence_for
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.prediction.step_time.step_table import EMPTY_TABLE
from tests.unit.prediction.pollux_tables import a_table, exact_rows

KNOWN = StepTimeParams(
    alpha_c=0.05, beta_c=0.004, alpha_n=0.2, beta_n=0.004, alpha_r=0.08, beta_r=0.002, gamma=1.5
)
SHAPES = [(n, k, m) for m in (32, 64) for n, k in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16))]
TABLE = a_table(exact_rows(KNOWN, SHAPES))
LIMITS = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024)


def a_spec(**changes):
    return JobSpec(**{"name": "job", "batch": LIMITS, "epochs": 10, "data_size": 50_000, **changes})


def a_curve(table=TABLE, spec=None, **more):
    more = {"grad_sqr": 1.0, "grad_var": 20.0, **more}
    return FittedCurve(spec=spec or a_spec(), table=table, **more)


def test_curves_keep_the_contract_of_a_curve():
    curves: list[Curve] = [a_curve(), RigidCurve(spec=JobSpec(name="rigid"))]
    assert all(curve.fitted for curve in curves)


def test_fitted_curve_is_the_goodput_of_the_best_batch():
    curve = a_curve()
    params = step_time.fit(TABLE)
    for nodes, replicas in [(1, 1), (1, 4), (2, 2), (4, 16), (16, 64), (16, 128)]:
        best = best_batch(params, (1.0, 20.0), LIMITS, nodes, replicas)
        assert curve.goodput(nodes, replicas) == pytest.approx(best.goodput)
        assert curve.config(nodes, replicas) == best


def test_fitted_curve_grid_holds_the_single_answers():
    curve = a_curve()
    grid = curve.goodput(np.arange(5)[:, None], np.arange(21))
    assert grid.shape == (5, 21)
    assert not grid[0].any()
    assert not grid[:, 0].any()
    assert not grid[3, :3].any()  # three nodes need three replicas
    for nodes, replicas in [(1, 1), (1, 7), (3, 3), (4, 20)]:
        assert 0 < grid[nodes, replicas] == pytest.approx(float(a_curve().goodput(nodes, replicas)))
    nodes, replicas = np.array([[1], [2]]), np.array([2, 4, 8])
    np.testing.assert_array_equal(curve.goodput(nodes, replicas), grid[nodes, replicas])


def test_fitted_curve_answers_beyond_what_can_run_with_zero():
    curve = a_curve()
    assert curve.goodput(16, 128) > 0
    assert curve.goodput(16, 129) == curve.goodput(16, 100_000) == 0.0
    np.testing.assert_array_equal(curve.goodput([1, 16], [1, 10_000]) > 0, [True, False])


def test_fitted_curve_fits_once_and_only_when_asked():
    table = a_table(exact_rows(KNOWN, [(1, 1, 77), (1, 2, 77)]))
    before = step_time.fit_count()
    curve = a_curve(table)
    assert curve.fitted
    assert curve.max_profiled_replicas == 2
    assert step_time.fit_count() == before
    curve.goodput(np.arange(17)[:, None], np.arange(65))
    curve.config(2, 8)
    a_curve(table, evidence=evidence_for(a_spec(), done=100.0)).goodput(1, 1)
    assert step_time.fit_count() == before + 1


def test_fitted_curve_of_a_job_never_measured_is_perfect_scaling():
    curve = a_curve(EMPTY_TABLE)
    assert not curve.fitted
    assert curve.max_profiled_replicas == 0
    np.testing.assert_array_equal(curve.goodput([1, 1, 4, 16], [1, 4, 16, 129]), [1.0, 4.0, 16.0, 0.0])
    assert curve.step_time_at(128, 1, 4) == 32.0
    choice = curve.config(1, 3)
    assert (choice.atomic_batch, choice.accumulation, choice.goodput) == (43, 0, 3.0)


def test_fitted_curve_stands_on_a_prior_where_nothing_was_measured():
    past = Prior(table=TABLE, noise=(Interval(value=2560.0, low=1000.0, high=5000.0),))
    curve, measured = a_curve(EMPTY_TABLE, grad_sqr=None, grad_var=None, past=past), a_curve(TABLE)
    assert curve.fitted
    assert curve.max_profiled_replicas == measured.max_profiled_replicas > 1
    assert curve.goodput(1, 4) == pytest.approx(float(measured.goodput(1, 4)))
    own = a_table(exact_rows(KNOWN, [(1, 1, 128)], factor=3.0))
    assert (
        float(a_curve(own, past=past).goodput(1, 1)) < float(measured.goodput(1, 1)) / 2
    )  # no twin after all
    assert a_curve(own, past=past).max_profiled_replicas == 1


def test_fitted_curve_without_gradients_stays_at_the_smallest_batch():
    curve = a_curve(grad_sqr=None, grad_var=None)
    assert curve.config(1, 1).atomic_batch == 128


def test_fitted_curve_step_time_at_a_given_batch():
    curve = a_curve()
    params = step_time.fit(TABLE)
    assert params is not None
    assert curve.step_time_at(256, 1, 1) == pytest.approx(float(params.step_time(1, 1, 128, 1)))
    assert curve.step_time_at(256, 2, 4) == pytest.approx(float(params.step_time(2, 4, 64, 0)))


def test_fitted_curve_counts_what_remains():
    curve = a_curve(evidence=evidence_for(a_spec(), done=100_000.0))
    assert curve.remaining_work() == 400_000.0
    assert curve.remaining_steps(128) == pytest.approx(400_000 / 128)
    # phi = 2560: a step of 512 is worth 512 (2560 + 128) / (2560 + 512) = 448 examples
    assert curve.remaining_steps(512) == pytest.approx(400_000 / 448)
    assert a_curve(evidence=evidence_for(a_spec(), done=1e9)).remaining_work() == 0.0
    assert a_curve(spec=a_spec(epochs=None)).remaining_work() == math.inf


def test_fitted_curve_in_fixed_mode_keeps_the_requested_batch():
    fixed = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024, mode="fixed")
    curve = a_curve(spec=a_spec(batch=fixed, requested_batch=512))
    choice = curve.config(2, 8)
    assert (choice.atomic_batch, choice.accumulation) == (64, 0)
    model = curve.model()
    assert model is not None
    assert choice.goodput == pytest.approx(float(model.goodput(2, 8, 64, 0)))
    assert curve.goodput(4, 16) > 0
    assert curve.goodput(4, 17) == 0.0  # less than 32 per GPU


def test_fitted_curve_takes_limits_by_type():
    small = Batch(initial=128, max=256, per_gpu_min=32, per_gpu_max=64)
    curve = a_curve(limits_by_type={"gpu": small})
    assert curve.goodput(4, 9) == 0.0
    assert curve.config(1, 2).atomic_batch <= 64


def test_fitted_curve_refuses_a_job_without_limits():
    with pytest.raises(InvariantError, match="RigidCurve"):
        a_curve(spec=a_spec(batch=None))


def test_rigid_curve_runs_at_the_requested_size_only():
    spec = JobSpec(name="rigid", requested=4, duration_s=100.0)
    curve = RigidCurve(spec=spec, evidence=evidence_for(spec, done=30.0))
    np.testing.assert_array_equal(curve.goodput([1, 1, 2, 1, 5], [3, 4, 4, 5, 4]), [0, 1, 1, 0, 0])
    assert curve.remaining_work() == curve.remaining_steps(8) == 70.0
    assert curve.step_time_at(8, 1, 4) == 1.0
    assert curve.step_time_at(8, 1, 2) == math.inf
    assert curve.config(1, 4).goodput == 1.0
    assert curve.max_profiled_replicas == 4
    assert RigidCurve(spec=JobSpec(name="rigid")).remaining_work() == math.inf


def test_fitted_curve_by_the_published_method_tells_one_node_from_several_only():
    curve = a_curve(step_time_model="pollux")
    assert isinstance(curve.model().step_time, StepTimeParams)
    assert curve.goodput(2, 16) == curve.goodput(3, 16) == curve.goodput(16, 16)


def test_fitted_curve_tells_node_counts_apart_and_grows_when_asked():
    curve, params = a_curve(), step_time.fit(TABLE)
    small = curve.goodput(2, 8)
    for nodes, replicas in [(3, 8), (8, 16), (16, 100), (50, 100)]:
        best = best_batch(params, (1.0, 20.0), LIMITS, nodes, replicas)
        assert curve.goodput(nodes, replicas) == pytest.approx(best.goodput)
    assert curve.goodput(2, 8) == small


def test_fitted_curve_announces_a_fit_before_the_first_only():
    calls = []
    curve = a_curve()
    curve.before_fit = lambda: calls.append(1)
    assert curve.remaining_work() > 0
    assert not calls
    curve.goodput(1, 2)
    curve.goodput(2, 4)
    assert calls == [1]


def test_a_row_of_one_and_a_single_question_are_told_apart():
    curve = a_curve()
    assert curve.goodput(np.array([1]), np.array([2])).shape == (1,)
    assert curve.goodput(1, 2).shape == ()
    assert curve.quickening(1, 2) > 0
