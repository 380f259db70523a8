from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.prediction.step_time.step_table import DRIFT, EMPTY_TABLE, observe
from tests.unit.prediction.pollux_tables import a_measurement


def observed(measurements):
    table = EMPTY_TABLE
    for measurement in measurements:
        table = observe(table, measurement)
    return table


@st.composite
def measurements(draw):
    step_s = draw(st.floats(0.1, 2.0))
    return a_measurement(
        nodes=draw(st.integers(1, 2)),
        replicas=draw(st.integers(2, 3)),
        atomic=draw(st.sampled_from([8, 16])),
        step_s=step_s,
        sync_s=draw(st.floats(0.0, 0.5)) * step_s,
        count=draw(st.integers(1, 50)),
        step_var=draw(st.floats(1e-6, 0.1)),
        sync_var=draw(st.floats(1e-6, 0.1)),
    )


@given(st.lists(measurements(), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_observe_does_not_depend_on_the_order_of_measurements(reports, random):
    shuffled = list(reports)
    random.shuffle(shuffled)
    one, other = observed(reports), observed(shuffled)
    assert len(one.rows) == len(other.rows)
    for a, b in zip(one.rows, other.rows, strict=True):
        assert (a.nodes, a.replicas, a.atomic_batch, a.count) == (
            b.nodes,
            b.replicas,
            b.atomic_batch,
            b.count,
        )
        for field in ("step_s", "sync_s", "step_var", "sync_var"):
            assert getattr(a, field) == pytest.approx(getattr(b, field), rel=1e-9, abs=1e-12)


@given(st.lists(measurements(), min_size=1, max_size=12))
@settings(deadline=None, max_examples=40)
def test_observe_lets_the_fit_lag_by_no_more_than_the_drift(reports):
    for row in observed(reports).rows:
        assert abs(row.step_s - row.fit_step_s) <= DRIFT * row.fit_step_s
        assert abs(row.sync_s - row.fit_sync_s) <= DRIFT * row.fit_step_s


def test_observe_merges_by_count():
    first = a_measurement(step_s=1.0, sync_s=0.2, count=3, step_var=0.04)
    second = a_measurement(step_s=2.0, sync_s=0.6, count=1, step_var=0.04)
    (row,) = observed([first, second]).rows
    assert row.count == 4
    assert row.step_s == pytest.approx(1.25)
    assert row.sync_s == pytest.approx(0.3)
    # within 0.04, between: 3/4 * 1/4 * 1
    assert row.step_var == pytest.approx(0.04 + 0.1875)
    assert row.grad_s == pytest.approx(0.95)


def test_observe_returns_the_same_table_for_a_noise_free_repeat():
    table = observed([a_measurement(step_s=0.5, sync_s=0.1)])
    assert observe(table, a_measurement(step_s=0.5, sync_s=0.1, count=20)) is table
    assert observe(table, a_measurement(step_s=0.6, sync_s=0.1)) is not table


def test_observe_ignores_a_report_without_times():
    assert observe(EMPTY_TABLE, a_measurement(step_s=0.0)) is EMPTY_TABLE
    assert observe(EMPTY_TABLE, a_measurement(step_s=1.0, count=0)) is EMPTY_TABLE


def test_observe_keeps_gpu_types_apart_and_rows_in_order():
    table = observed(
        [
            a_measurement(replicas=2, gpu_type="t4"),
            a_measurement(gpu_type="t4"),
            a_measurement(gpu_type="a100"),
        ]
    )
    assert [(r.gpu_type, r.replicas) for r in table.rows] == [("a100", 1), ("t4", 1), ("t4", 2)]
    assert table.max_replicas() == table.max_replicas("t4") == 2
    assert table.max_replicas("a100") == 1
    assert EMPTY_TABLE.max_replicas() == 0


def test_row_never_has_less_than_no_compute_time():
    (row,) = observed([a_measurement(step_s=1.0, sync_s=1.2)]).rows
    assert row.grad_s == pytest.approx(1e-3)
