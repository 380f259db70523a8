from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import Configuration
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import node_aware, step_table
from coadapt.prediction.step_time._base import fit, fit_many
from coadapt.prediction.step_time.node_aware import AwareParams
from coadapt.prediction.step_time.pollux import StepTimeParams
from tests.data import data_dir
from tests.unit.prediction.pollux_tables import TASKS, a_measurement, a_table, exact_rows, measured_rows

DATA = data_dir()
KNOWN = StepTimeParams(
    alpha_c=0.05, beta_c=0.004, alpha_n=0.2, beta_n=0.004, alpha_r=0.08, beta_r=0.002, gamma=1.5
)
SHAPES = [(n, k, m) for m in (16, 64) for n, k in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16), (8, 32))]


def aware(table, prior=None):
    params = fit(table, prior)
    assert isinstance(params, AwareParams)
    return params


def width(params, nodes, replicas, atomic=32):
    estimate = params.predict(Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic))
    return estimate.upper / estimate.low


def test_fit_follows_a_job_of_the_published_kind():
    params = aware(a_table(exact_rows(KNOWN, SHAPES)))
    for nodes, replicas, atomic in [(1, 1, 32), (1, 4, 48), (3, 12, 32), (8, 24, 64)]:
        truth = KNOWN.step_time(nodes, replicas, atomic)
        assert params.step_time(nodes, replicas, atomic) == pytest.approx(truth, rel=0.06)
        grad = KNOWN.alpha_c + KNOWN.beta_c * atomic
        assert params.grad_time(nodes, replicas, atomic) == pytest.approx(grad, rel=0.06)
    assert params.assumed() == ()
    assert params.points == (2, 4, 8)


def test_fit_does_not_force_time_to_rise_with_nodes():
    # as measured: eight replicas are slowest on two nodes
    rows = [
        (1, 1, 8, 0.5, 0.0),
        (1, 4, 8, 0.6, 0.1),
        (2, 8, 8, 1.68, 1.18),
        (3, 8, 8, 1.02, 0.52),
        (4, 8, 8, 0.97, 0.47),
    ]
    params = aware(a_table(rows))
    on_two, on_three = params.step_time([2, 3], 8, 8)
    assert on_two == pytest.approx(1.68, rel=0.1)
    assert on_three == pytest.approx(1.02, rel=0.1)


def test_residual_holds_where_measured_and_fades_outside():
    rows = exact_rows(KNOWN, SHAPES)
    odd = [(n, k, m, t * (1.3 if (n, k) == (4, 16) else 1.0), s) for n, k, m, t, s in rows]
    plain, bent = aware(a_table(rows)), aware(a_table(odd))

    def excess(nodes, replicas, atomic):
        ratio = bent.step_time(nodes, replicas, atomic) / plain.step_time(nodes, replicas, atomic)
        return abs(math.log(ratio))

    assert excess(4, 16, 32) > 0.12
    assert excess(4, 16, 32) > excess(4, 8, 32) > excess(1, 2, 32)
    assert excess(1, 1, 32) < 0.03


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=14, unique=True), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_fit_in_company_is_the_fit_alone_to_the_last_bit(shapes, seed):
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.2, 5.0, 3)
    tables = [
        a_table([(n, k, m, c * t, c * s) for n, k, m, t, s in exact_rows(KNOWN, shapes[: 1 + i * 5])])
        for i, c in enumerate(scales)
    ]
    together = fit_many(tables)
    step_time.step_time_model().forget()
    assert together == [fit(table) for table in tables]


def test_fit_many_leaves_priors_where_nothing_was_measured():
    table = a_table([(1, 1, 32, 0.5, 0.0)])
    assert fit_many([step_table.EMPTY_TABLE, table, step_table.EMPTY_TABLE], [KNOWN, None, None]) == [
        KNOWN,
        fit(table),
        None,
    ]


def test_fit_does_not_depend_on_units():
    rows = exact_rows(KNOWN, SHAPES[:9])
    slow = aware(a_table([(n, k, m, 1000 * t, 1000 * s) for n, k, m, t, s in rows]))
    fast = aware(a_table(rows))
    np.testing.assert_allclose(
        slow.step_time([1, 2, 4], [4, 8, 16], 32),
        1000 * fast.step_time([1, 2, 4], [4, 8, 16], 32),
        rtol=1e-6,
    )


def test_one_point_gives_a_wide_interval_and_says_what_is_assumed():
    params = aware(a_table([(1, 1, 32, 0.5, 0.0)]))
    assert "synchronisation between nodes" in params.assumed()
    assert "how time grows with the batch size" in params.assumed()
    assert params.step_time(1, 1, 32) == pytest.approx(0.5, rel=0.1)
    assert width(params, 1, 1) < 1.5
    assert width(params, 2, 8) > 3
    many = aware(a_table(exact_rows(KNOWN, SHAPES)))
    assert width(params, 2, 8) > 2 * width(many, 2, 8)


def test_constant_times_give_finite_answers():
    params = aware(a_table([(n, k, m, 0.3, 0.0) for n, k, m in SHAPES]))
    assert float(params.step_time(4, 16, 32)) == pytest.approx(0.3, rel=0.2)


def test_times_that_are_not_times_are_ignored():
    table = a_table([(1, 1, 32, 0.5, 0.0)])
    for step_s, sync_s in [(math.nan, 0.0), (0.5, math.nan), (math.inf, 0.0), (-0.5, 0.0), (0.5, -0.1)]:
        assert step_table.observe(table, a_measurement(1, 2, 32, step_s, sync_s)) is table


def test_unreported_synchronisation_is_not_taken_for_none():
    rows = [(n, k, m, t, 0.0) for n, k, m, t, _ in exact_rows(KNOWN, SHAPES)]
    params = aware(a_table(rows))
    truth = KNOWN.step_time(4, 16, 32)
    assert params.step_time(4, 16, 32) == pytest.approx(truth, rel=0.08)
    assert params.grad_time(4, 16, 32) == pytest.approx(KNOWN.alpha_c + KNOWN.beta_c * 32, rel=0.15)


def test_prior_of_a_similar_job_fills_what_was_not_measured():
    similar = aware(a_table(exact_rows(KNOWN, SHAPES)))
    few = a_table(exact_rows(KNOWN, [(1, 1, 16), (1, 1, 64)]))
    truth = float(KNOWN.step_time(4, 16, 32))

    def error(params):
        return abs(math.log(float(params.step_time(4, 16, 32)) / truth))

    assert error(aware(few, similar)) < 0.1 < error(aware(few))
    assert width(aware(few, similar), 4, 16) < width(aware(few), 4, 16)


def test_node_rows_are_all_that_step_time_tells_apart():
    params = aware(a_table(exact_rows(KNOWN, SHAPES)))
    nodes = np.arange(1, 40)
    rows = params.node_counts()[params.distinct_nodes(nodes) - 1]
    np.testing.assert_array_equal(params.step_time(nodes, 64, 32), params.step_time(rows, 64, 32))


def test_large_tables_are_thinned_to_the_same_shapes(monkeypatch):
    shapes = [(n, k, m) for n, k in ((1, 1), (1, 4), (2, 8), (4, 16)) for m in range(8, 72, 2)]
    rows = exact_rows(KNOWN, shapes)
    full = aware(a_table(rows))
    monkeypatch.setattr(node_aware, "MAX_POINTS", 40)
    step_time.step_time_model().forget()
    thin = aware(a_table(rows))
    step_time.step_time_model().forget()
    assert len(thin.support) <= 40 < len(full.support)
    assert {row[:2] for row in thin.support} == {row[:2] for row in full.support}
    np.testing.assert_allclose(
        thin.step_time(2, 8, [10, 30, 60]),
        full.step_time(2, 8, [10, 30, 60]),
        rtol=0.02,
    )


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="shared measurements not found; set COADAPT_DATA")
def test_fit_from_twelve_points_beats_the_published_one():
    assert DATA is not None
    errors: dict[str, list[float]] = {"node-aware": [], "pollux": []}
    for task in TASKS[:2]:
        rows = measured_rows(DATA / "pollux" / task)
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(len(rows))
            table = a_table(rows[i] for i in order[:12])
            nodes, replicas, atomic, step_s, _ = np.array([rows[i] for i in order[12:]]).T
            for name, found in errors.items():
                params = fit(table, model=name)
                assert params is not None
                predicted = params.step_time(nodes, replicas, atomic)
                found.append(float(np.abs(predicted - step_s).sum() / step_s.sum()))
    assert np.mean(errors["node-aware"]) < 0.8 * np.mean(errors["pollux"])
    assert np.mean(errors["node-aware"]) < 0.08
