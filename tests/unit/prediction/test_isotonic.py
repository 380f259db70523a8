from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.prediction.samples.isotonic import fit_curve, shaped, value_at

#: Values on a coarse grid, so that the brute force below has the optimum among block means.
values = st.lists(st.integers(-8, 8), min_size=1, max_size=6).map(lambda v: np.array(v, dtype=float))
long_values = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40).map(np.array)


def block_fits(y: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    """All ways to cut y into runs and replace each by its weighted mean: an optimum is among them."""
    fits = []
    for cuts in itertools.product((False, True), repeat=len(y) - 1):
        run = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
        mean = np.bincount(run, weights=weight * y) / np.bincount(run, weights=weight)
        fits.append(mean[run])
    return fits


def turns_once(c: np.ndarray) -> bool:
    top = int(np.argmax(c))
    return bool(np.all(np.diff(c[: top + 1]) >= -1e-9) and np.all(np.diff(c[top:]) <= 1e-9))


def loss(y: np.ndarray, weight: np.ndarray, fit: np.ndarray) -> float:
    return float(weight @ (y - fit) ** 2)


def test_rising_pools_violators_by_hand():
    found = shaped(np.array([1.0, 3.0, 2.0, 4.0]), np.array([1.0, 1.0, 3.0, 1.0]), "rising")
    np.testing.assert_allclose(found, [1.0, 2.25, 2.25, 4.0])


@given(long_values)
def test_rising_is_monotone_idempotent_and_keeps_the_mean(y):
    weight = np.linspace(1, 2, len(y))
    fit = shaped(y, weight, "rising")
    assert np.all(np.diff(fit) >= -1e-9)
    assert weight @ fit == pytest.approx(weight @ y, abs=1e-6)
    np.testing.assert_allclose(shaped(fit, weight, "rising"), fit, atol=1e-9)


@given(values)
def test_rising_is_optimal_against_brute_force(y):
    weight = np.arange(1.0, len(y) + 1)
    rivals = [f for f in block_fits(y, weight) if np.all(np.diff(f) >= -1e-12)]
    best = min(loss(y, weight, f) for f in rivals)
    assert loss(y, weight, shaped(y, weight, "rising")) == pytest.approx(best, abs=1e-9)


@given(values)
def test_peak_is_optimal_against_brute_force(y):
    weight = np.arange(1.0, len(y) + 1)
    fit = shaped(y, weight, "peak")
    assert turns_once(fit)
    best = min(loss(y, weight, f) for f in block_fits(y, weight) if turns_once(f))
    assert loss(y, weight, fit) == pytest.approx(best, abs=1e-9)


@given(long_values)
def test_falling_and_valley_mirror_rising_and_peak(y):
    weight = np.ones(len(y))
    np.testing.assert_allclose(shaped(y, weight, "falling"), -shaped(-y, weight, "rising"))
    np.testing.assert_allclose(shaped(y, weight, "valley"), -shaped(-y, weight, "peak"))


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-50, 50)), min_size=1, max_size=30))
def test_curve_stays_within_the_data_and_ignores_their_order(points):
    x, y = np.array(points, dtype=float).T
    curve = fit_curve(x, y, "rising")
    asked = np.linspace(-5, 20, 50)
    heights = value_at(curve, asked)
    assert np.all((heights >= y.min() - 1e-9) & (heights <= y.max() + 1e-9))
    backwards = fit_curve(x[::-1], y[::-1], "rising")
    np.testing.assert_allclose(value_at(backwards, asked), heights, atol=1e-9)


def test_curve_is_linear_between_knots_and_flat_beyond():
    curve = fit_curve(np.array([1.0, 3.0, 3.0]), np.array([0.0, 1.0, 3.0]), "rising")
    np.testing.assert_allclose(value_at(curve, np.array([0.0, 2.0, 3.0, 9.0])), [0.0, 1.0, 2.0, 2.0])
