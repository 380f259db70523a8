from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import Configuration, Measurement
from coadapt.prediction.remaining.convergence import (
    MAX_POINTS,
    LossParams,
    LossTable,
    epochs_to,
    epochs_until_flat,
    fit,
    observe,
    predict,
    without_outliers,
)

CONFIG = Configuration(nodes=1, replicas=1, atomic_batch=1)


def a_loss_table(points):
    table = LossTable()
    for epoch, loss in points:
        table = observe(table, Measurement(config=CONFIG, epoch=epoch, metrics={"loss": loss}))
    return table


def curve(k, b0=0.4, b1=0.5, b2=0.3):
    return 1 / (b0 * k + b1) + b2


def test_fit_recovers_a_curve_and_sees_beyond_its_end():
    params = fit(a_loss_table([(float(k), curve(k)) for k in range(20)]))
    assert params is not None
    assert predict(params, 50.0).value == pytest.approx(curve(50), rel=0.01)
    assert params.b2 * params.unit == pytest.approx(0.3, rel=0.02)


@given(st.floats(0.05, 2), st.floats(0.2, 2), st.floats(0, 1), st.floats(0.5, 100))
@settings(deadline=None, max_examples=20)
def test_fit_is_accurate_inside_its_range_whatever_the_unit(b0, b1, b2, unit):
    losses = [(float(k), unit * curve(k, b0, b1, b2)) for k in range(15)]
    params = fit(a_loss_table(losses))
    assert params is not None
    assert min(params.b0, params.b1, params.b2) >= 0
    for epoch, loss in losses[2:-2]:
        estimate = predict(params, epoch)
        assert estimate.value == pytest.approx(loss, rel=0.05)
        assert estimate.low <= estimate.value <= estimate.upper


def test_fit_needs_three_points():
    points = [(float(k), curve(k)) for k in range(3)]
    assert fit(a_loss_table(points[:2])) is None
    assert fit(a_loss_table(points)) is not None


def test_epochs_to_inverts_the_curve_and_says_never():
    params = LossParams(b0=0.4, b1=0.5, b2=0.3, unit=2.0, scatter=0.01, points=20)
    reached = epochs_to(params, 2.0 * curve(12))
    assert reached is not None
    assert reached.value == pytest.approx(12)
    assert reached.low < 12 < reached.upper
    assert epochs_to(params, 2.0 * 0.3) is None
    near = epochs_to(params, 2.0 * 0.305)
    assert near is not None
    assert near.upper == math.inf  # within the noise of the plateau: perhaps never
    already = epochs_to(params, 10.0)
    assert already is not None
    assert already.value == 0.0


def test_epochs_to_is_never_on_a_plateau():
    params = fit(a_loss_table([(float(k), 1.0) for k in range(10)]))
    assert params is not None
    assert epochs_to(params, 0.5) is None


def test_epochs_until_flat_is_where_the_loss_falls_by_just_that():
    params = LossParams(b0=0.4, b1=0.5, b2=0.3, unit=1.0, scatter=0.001, points=20)
    flat = epochs_until_flat(params, change=0.05, window=10)
    assert curve(flat.value) - curve(flat.value + 10) == pytest.approx(0.05)
    assert flat.low < flat.value < flat.upper
    assert (
        epochs_until_flat(LossParams(b0=0, b1=1, b2=0, unit=1, scatter=0.01, points=9), 0.05, 10).value == 0.0
    )


def test_without_outliers_replaces_a_spike_and_nothing_else():
    losses = np.array([1.0, 0.9, 0.8, 5.0, 0.7, 0.6, 0.5])
    np.testing.assert_allclose(
        without_outliers(losses), [1.0, 0.9, 0.8, (0.9 + 0.8 + 0.7 + 0.6) / 4, 0.7, 0.6, 0.5]
    )
    smooth = np.array([curve(k) for k in range(10)])
    np.testing.assert_array_equal(without_outliers(smooth), smooth)


def test_observe_ignores_what_is_not_a_loss():
    table = a_loss_table([(1.0, 0.5)])
    for metrics, epoch in (({}, 2.0), ({"loss": math.nan}, 2.0), ({"loss": 0.4}, None), ({"loss": 0.5}, 1.0)):
        assert observe(table, Measurement(config=CONFIG, epoch=epoch, metrics=metrics)) is table


def test_observe_bounds_the_table_and_keeps_its_shape():
    table = a_loss_table([(k / 10, curve(k / 10)) for k in range(2000)])
    assert len(table.points) <= MAX_POINTS
    assert list(table.points) == sorted(table.points)
    params = fit(table)
    assert params is not None
    assert predict(params, 150.0).value == pytest.approx(curve(150), rel=0.02)
