"""Curves on GPU types that a job was not measured on, or hardly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coadapt.configure import FittedCurve
from coadapt.model import Batch, JobSpec
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable
from tests.unit.prediction.test_gpu_projection import SHAPES, a_mixed_table, rows_on

LIMITS = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024)
NODES, REPLICAS = np.array([1, 1, 1, 2]), np.array([1, 2, 4, 8])
MODELS = ["node-aware", "pollux"]


def a_curve(table: StepTimeTable, name: str = "node-aware", **more: Any) -> FittedCurve:
    spec = JobSpec(name="job", batch=LIMITS, epochs=10, data_size=50_000)
    return FittedCurve(spec=spec, table=table, grad_sqr=1.0, grad_var=20.0, step_time_model=name, **more)


@pytest.mark.parametrize("name", MODELS)
def test_unmeasured_type_is_the_measured_one_at_another_speed(name: str):
    curve = a_curve(a_mixed_table(t4=rows_on("t4", SHAPES)), name, one_gpu={"t4": 100.0, "a100": 300.0})
    on_t4, on_a100 = (curve.goodput(NODES, REPLICAS, name) for name in ("t4", "a100"))
    np.testing.assert_allclose(on_a100, 3.0 * on_t4, rtol=1e-6)
    assert curve.goodput(1, 4, "tpu") == pytest.approx(float(curve.goodput(1, 4, "t4")))
    assert 2.0 < float(curve.goodput(1, 4, "v100") / curve.goodput(1, 4, "t4")) < 2.6  # by datasheet
    assert curve.config(1, 4, "a100").atomic_batch == curve.config(1, 4, "t4").atomic_batch
    assert curve.step_time_at(256, 1, 4, "a100") == pytest.approx(curve.step_time_at(256, 1, 4, "t4") / 3)


@pytest.mark.parametrize("name", MODELS)
def test_unmeasured_type_keeps_its_own_batch_limits(name: str):
    small = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=64)
    curve = a_curve(a_mixed_table(t4=rows_on("t4", SHAPES)), name, limits_by_type={"rtx": small})
    assert curve.config(1, 4, "rtx").atomic_batch <= 64


@pytest.mark.parametrize("name", MODELS)
def test_type_measured_with_several_replicas_stands_for_itself(name: str):
    t4, rtx = rows_on("t4", SHAPES), rows_on("rtx", [(1, 1, 32), (1, 2, 32)], faster=2.0)
    both, alone = (a_curve(table, name) for table in (a_mixed_table(t4=t4, rtx=rtx), a_mixed_table(rtx=rtx)))
    np.testing.assert_array_equal(both.goodput(NODES, REPLICAS, "rtx"), alone.goodput(NODES, REPLICAS, "rtx"))


def test_type_measured_with_one_gpu_leans_on_the_scaling_seen_elsewhere():
    """By ours. The published model takes its single point for perfect scaling, as released."""
    t4, rtx = rows_on("t4", SHAPES), rows_on("rtx", [(1, 1, 32), (1, 1, 64)], faster=2.0)
    table, alone = a_mixed_table(t4=t4, rtx=rtx), a_mixed_table(rtx=rtx)
    expected = 2.0 * a_curve(table).goodput(2, 8, "t4")
    assert a_curve(table).goodput(2, 8, "rtx") == pytest.approx(float(expected), rel=0.15)
    assert a_curve(alone).goodput(2, 8, "rtx") != pytest.approx(float(expected), rel=0.15)
    published = [a_curve(some, "pollux").goodput(2, 8, "rtx") for some in (table, alone)]
    assert published[0] == published[1]


@pytest.mark.parametrize("name", MODELS)
def test_one_type_alone_is_fitted_as_without_projection(name: str):
    table = a_mixed_table(t4=rows_on("t4", SHAPES))
    model = a_curve(table, name, one_gpu={"t4": 1.0, "a100": 2.0}).model("t4")
    assert model is not None
    assert model.step_time == step_time.fit(table, gpu_type="t4", model=name)


def test_job_measured_nowhere_scales_perfectly_on_every_type():
    curve = a_curve(EMPTY_TABLE, one_gpu={"t4": 1.0, "a100": 2.0})
    assert not curve.fitted
    for name in ("gpu", "t4", "a100"):
        np.testing.assert_array_equal(curve.goodput(NODES, REPLICAS, name), REPLICAS)
        assert curve.model(name) is None
