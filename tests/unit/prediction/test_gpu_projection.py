"""Projection to a GPU type never measured: which source, which speed, and what becomes of the parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coadapt.model import Configuration
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import gpu_projection
from coadapt.prediction.step_time._base import FittedStepTime
from coadapt.prediction.step_time.gpu_projection import Speed
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeRow, StepTimeTable
from tests.unit.prediction.pollux_tables import a_table, exact_rows

KNOWN = StepTimeParams(
    alpha_c=0.05, beta_c=0.004, alpha_n=1.2, beta_n=0.02, alpha_r=0.08, beta_r=0.002, gamma=1.5
)
SHAPES = [(n, k, m) for m in (32, 64) for n, k in ((1, 1), (1, 2), (1, 4), (2, 8))]


def rows_on(gpu_type: str, shapes: list[tuple[int, int, int]], faster: float = 1.0) -> list[StepTimeRow]:
    """What a GPU so many times as fast as ``KNOWN`` would have been measured at."""
    params = gpu_projection.project(KNOWN, Speed(faster, "measured"))
    assert isinstance(params, StepTimeParams)
    return [replace(row, gpu_type=gpu_type) for row in a_table(exact_rows(params, shapes)).rows]


def a_mixed_table(**by_type: list[StepTimeRow]) -> StepTimeTable:
    rows = [row for of in by_type.values() for row in of]
    return StepTimeTable(
        rows=tuple(sorted(rows, key=lambda r: (r.gpu_type, r.nodes, r.replicas, r.atomic_batch)))
    )


def test_source_is_the_type_measured_with_most_replicas_then_most_often():
    table = a_mixed_table(
        t4=rows_on("t4", [(1, 1, 32), (1, 4, 32)]),
        rtx=rows_on("rtx", [(1, 4, 32), (1, 4, 64), (1, 2, 32)]),
        v100=rows_on("v100", [(1, 2, 32)]),
    )
    assert gpu_projection.source_of(table, "a100") == "rtx"
    assert gpu_projection.source_of(table, "v100") == "rtx"
    assert gpu_projection.source_of(table, "t4") is None  # measured with as many itself
    assert gpu_projection.source_of(EMPTY_TABLE, "a100") is None
    assert gpu_projection.source_of(a_mixed_table(t4=rows_on("t4", SHAPES)), "t4") is None


def test_speed_is_measured_where_one_gpu_was():
    table = a_mixed_table(
        t4=rows_on("t4", SHAPES), a100=rows_on("a100", [(1, 1, 48), (1, 1, 96)], faster=3.0)
    )
    found = gpu_projection.speed(table, "t4", "a100", KNOWN, {"t4": 1.0, "a100": 50.0})
    assert found.basis == "measured"
    assert found.ratio == pytest.approx(3.0)
    # several GPUs say more than the speed of one
    table = a_mixed_table(t4=rows_on("t4", SHAPES), a100=rows_on("a100", [(1, 2, 48)], faster=3.0))
    assert gpu_projection.speed(table, "t4", "a100", KNOWN, {"t4": 1.0, "a100": 5.0}) == Speed(
        5.0, "profiled"
    )


def test_speed_is_profiled_then_from_datasheets_then_one():
    table = a_mixed_table(t4=rows_on("t4", SHAPES))
    assert gpu_projection.speed(table, "t4", "a100", KNOWN, {"t4": 2.0, "a100": 9.0}) == Speed(
        4.5, "profiled"
    )
    for useless in (None, {}, {"t4": 2.0}, {"t4": 0.0, "a100": 3.0}):
        found = gpu_projection.speed(table, "t4", "a100", KNOWN, useless)
        assert found.basis == "datasheet"
        assert found.ratio == pytest.approx(math.sqrt(19.5 / 8.1 * 1555 / 320))
    assert gpu_projection.speed(table, "t4", "tpu", KNOWN) == Speed(1.0, "nothing")
    assert gpu_projection.speed(table, "gpu", "a100", KNOWN) == Speed(1.0, "nothing")


@given(
    st.sampled_from(["t4", "a100", "rtx", "v100", "h100"]),
    st.sampled_from(["t4", "a100", "rtx", "v100", "h100"]),
)
def test_datasheet_speeds_there_and_back_cancel(one: str, other: str):
    there, back = gpu_projection.datasheet_speed(one, other), gpu_projection.datasheet_speed(other, one)
    assert there.ratio * back.ratio == pytest.approx(1.0)


def fitted(name: str) -> FittedStepTime:
    params = step_time.fit(a_table(exact_rows(KNOWN, SHAPES)), model=name)
    assert params is not None
    return params


@pytest.mark.parametrize("name", ["node-aware", "pollux"])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.4])
def test_projected_times_are_all_divided_by_the_speed(name: str, ratio: float):
    params = fitted(name)
    projected = gpu_projection.project(params, Speed(ratio, "profiled"))
    shape = (
        np.array([1, 1, 2, 4]),
        np.array([1, 4, 8, 16]),
        np.array([16, 32, 64, 100]),
        np.array([0, 1, 0, 2]),
    )
    np.testing.assert_allclose(projected.step_time(*shape) * ratio, params.step_time(*shape), rtol=1e-6)


@pytest.mark.parametrize("name", ["node-aware", "pollux"])
def test_projected_intervals_widen_by_how_little_is_known(name: str):
    params, at = fitted(name), Configuration(nodes=1, replicas=4, atomic_batch=32)

    def width(some: FittedStepTime) -> float:
        estimate = some.predict(at)
        return estimate.upper / estimate.low

    bases: list[gpu_projection.Basis] = ["measured", "profiled", "datasheet", "nothing"]
    widths = [width(gpu_projection.project(params, Speed(1.0, basis))) for basis in bases]
    assert width(params) < widths[0] < widths[1] < widths[2] < widths[3]
