from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.prediction.remaining.learning_curve import LossParams, fit_loss, progress_to, without_outliers


def loss_at(params, k):
    return params.unit * (1 / (params.b0 * k + params.b1) + params.b2)


def curve(k, b0=0.4, b1=0.5, b2=0.3):
    return 1 / (b0 * k + b1) + b2


def test_fit_recovers_a_curve_and_sees_beyond_its_end():
    params = fit_loss([(float(k), curve(k)) for k in range(20)])
    assert params is not None
    assert loss_at(params, 50.0) == pytest.approx(curve(50), rel=0.01)
    assert params.b2 * params.unit == pytest.approx(0.3, rel=0.02)


@given(st.floats(0.05, 2), st.floats(0.2, 2), st.floats(0, 1), st.floats(0.5, 100))
@settings(deadline=None, max_examples=20)
def test_fit_is_accurate_inside_its_range_whatever_the_unit(b0, b1, b2, unit):
    losses = [(float(k), unit * curve(k, b0, b1, b2)) for k in range(15)]
    params = fit_loss(losses)
    assert params is not None
    assert min(params.b0, params.b1, params.b2) >= 0
    for epoch, loss in losses[2:-2]:
        assert loss_at(params, epoch) == pytest.approx(loss, rel=0.05)


def test_fit_needs_three_points():
    points = [(float(k), curve(k)) for k in range(3)]
    assert fit_loss(points[:2]) is None
    assert fit_loss(points) is not None


def test_progress_to_inverts_the_curve_and_says_never():
    params = LossParams(b0=0.4, b1=0.5, b2=0.3, unit=2.0, scatter=0.01, points=20)
    reached = progress_to(params, 2.0 * curve(12))
    assert reached is not None
    assert reached.value == pytest.approx(12)
    assert reached.low < 12 < reached.upper
    assert progress_to(params, 2.0 * 0.3) is None
    near = progress_to(params, 2.0 * 0.305)
    assert near is not None
    assert near.upper == math.inf  # within the noise of the plateau: perhaps never
    already = progress_to(params, 10.0)
    assert already is not None
    assert already.value == 0.0


def test_progress_to_is_never_on_a_plateau():
    params = fit_loss([(float(k), 1.0) for k in range(10)])
    assert params is not None
    assert progress_to(params, 0.5) is None


def test_without_outliers_replaces_a_spike_and_nothing_else():
    losses = np.array([1.0, 0.9, 0.8, 5.0, 0.7, 0.6, 0.5])
    np.testing.assert_allclose(
        without_outliers(losses), [1.0, 0.9, 0.8, (0.9 + 0.8 + 0.7 + 0.6) / 4, 0.7, 0.6, 0.5]
    )
    smooth = np.array([curve(k) for k in range(10)])
    np.testing.assert_array_equal(without_outliers(smooth), smooth)
