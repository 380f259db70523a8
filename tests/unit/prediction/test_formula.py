from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from coadapt.prediction.step_time.formula import (
    DEVIATIONS,
    MEANS,
    NODE_LEVELS,
    batch_kernel,
    derivatives,
    log_times,
    node_level,
    place_kernel,
    sync_terms,
)

POINTS = np.array(
    [(1, 1, 0.5), (1, 2, 1.0), (1, 4, 2.0), (2, 2, 0.5), (2, 8, 1.0), (3, 8, 1.0), (16, 64, 2.0)]
)
NODES, REPLICAS, BATCH = POINTS.T


@given(st.lists(st.floats(-2, 2), min_size=len(MEANS), max_size=len(MEANS)))
@settings(max_examples=30, deadline=None)
def test_derivatives_agree_with_finite_differences(offsets):
    theta, terms = MEANS + DEVIATIONS * np.array(offsets), sync_terms(NODES, REPLICAS)
    logs = log_times(theta, terms, BATCH)
    by_step, by_grad = derivatives(theta, terms, BATCH, logs)
    for i in range(len(POINTS)):

        def step(x, i=i):
            return log_times(x, terms, BATCH).step[i]

        def grad(x, i=i):
            return log_times(x, terms, BATCH).grad[i]

        np.testing.assert_allclose(by_step[i], approx_fprime(theta, step, 1e-7), atol=1e-5)
        np.testing.assert_allclose(by_grad[i], approx_fprime(theta, grad, 1e-7), atol=1e-5)


def test_formula_by_hand():
    # a_c, b_c, a_r, b_r, a_n, b_n, d_n, e_n, a_2, b_2; gamma 2
    scale = np.array([1.0, 2.0, 0.5, 0.25, 3.0, 1.0, 0.5, 0.1, 0.7, 0.2])
    theta = np.append(np.log(scale), 0.0)
    shapes = [(1, 1), (1, 4), (3, 8), (2, 8)]
    nodes, replicas = np.array(shapes).T
    logs = log_times(theta, sync_terms(nodes, replicas), np.full(4, 1.5))
    grad = 1.0 + 2.0 * 1.5
    wide = 3.0 + 1.0 * (1 - 2 / 8) + 0.5 * np.log(4) + 0.1 * 6
    sync = [0.0, 0.5 + 0.25 * 2, wide, wide + 0.7 + 0.2 * np.log(4)]
    np.testing.assert_allclose(np.exp(logs.grad), grad)
    np.testing.assert_allclose(np.exp(logs.step), np.hypot(grad, sync))


def test_node_levels_cover_every_count():
    assert node_level(0) == 0
    assert NODE_LEVELS[node_level(NODE_LEVELS) - 1].tolist() == NODE_LEVELS.tolist()
    assert NODE_LEVELS[node_level([5, 7, 11, 15, 1000]) - 1].tolist() == [4, 6, 8, 12, 16]


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 64), st.integers(1, 512)),
        min_size=1,
        max_size=12,
        unique=True,
    )
)
@settings(deadline=None)
def test_kernel_is_a_covariance_and_says_nothing_between_one_two_and_more_nodes(points):
    nodes, replicas, batch = np.array(points, dtype=float).T
    likeness = place_kernel(nodes, replicas, nodes, replicas) * batch_kernel(batch, batch)
    np.testing.assert_allclose(np.diag(likeness), 1.0)
    assert np.linalg.eigvalsh(likeness).min() > -1e-9
    kinds = np.minimum(nodes, 3)
    assert not likeness[kinds[:, None] != kinds].any()
