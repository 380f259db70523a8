from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.prediction.gradient_noise import efficiency, gain, noise_scale

statistics = st.floats(0, 1e15)


@given(statistics, statistics, st.lists(st.floats(1.0, 1e6), min_size=2, max_size=20))
def test_efficiency_is_a_share_that_never_rises_with_the_batch(sqr, var, scales):
    values = efficiency(sqr, var, np.sort(np.array(scales)))
    assert np.all(values > 0)
    assert np.all(values <= 1)
    assert np.all(np.diff(values) <= 0)


@given(st.floats(1e-6, 1e9), st.floats(1e-6, 1e9), st.floats(1.0, 1e4), st.integers(1, 4096))
def test_efficiency_agrees_with_the_noise_scale(sqr, var, scale, initial_batch):
    phi = noise_scale(sqr, var, initial_batch)
    expected = (phi + initial_batch) / (phi + initial_batch * scale)
    assert efficiency(sqr, var, scale) == pytest.approx(expected, rel=1e-9)
    assert gain(sqr, var, scale) == pytest.approx(scale * expected, rel=1e-9)


def test_gain_by_hand():
    assert gain(1.0, 3.0, 3.0) == pytest.approx(2.0)
    assert efficiency(1.0, 3.0, 3.0) == pytest.approx(2 / 3)
    assert gain(1.0, 3.0, 1.0) == 1.0


@pytest.mark.parametrize(("sqr", "var"), [(0.0, 0.0), (-1.0, 0.0), (-2.0, -1.0)])
def test_gain_is_one_where_nothing_is_known(sqr, var):
    assert gain(sqr, var, 8.0) == 1.0
    assert efficiency(sqr, var, 8.0) == pytest.approx(1 / 8)
    np.testing.assert_array_equal(gain(sqr, var, np.array([1.0, 8.0])), [1.0, 1.0])
    assert noise_scale(sqr, var, 64) == 0.0


def test_gain_of_pure_noise_is_the_scale():
    assert gain(0.0, 2.0, 8.0) == 8.0
    assert gain(-1.0, 2.0, 8.0) == 8.0
    assert noise_scale(0.0, 2.0, 64) == math.inf
