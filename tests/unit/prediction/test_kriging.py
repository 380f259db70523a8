"""Values at some batch sizes, carried to any: each its own as far as its error allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.prediction.samples.kriging import along

SIZES = np.log([32.0, 64.0, 128.0, 256.0, 512.0])


def test_values_without_error_are_kept() -> None:
    values = np.array([1.0, 1.4, 0.9, 1.3, 1.1])
    mean, variance = along(SIZES, values, np.full(5, 1e-6), SIZES)
    assert mean == pytest.approx(values, abs=0.01)
    assert (variance < 1e-4).all()


def test_values_that_differ_by_no_more_than_their_errors_are_averaged() -> None:
    values = 2.0 + 0.2 * np.array([1.0, -1.0, 1.0, -1.0, 0.0])
    mean, variance = along(SIZES, values, np.full(5, 0.04), SIZES)
    assert np.ptp(mean) < 0.3 * np.ptp(values)
    assert (variance < 0.04).all()


def test_a_sure_value_holds_against_unsure_neighbours() -> None:
    values, error = np.array([1.0, 1.0, 2.0, 1.0, 1.0]), np.array([0.25, 0.25, 1e-4, 0.25, 0.25])
    assert along(SIZES, values, error, SIZES)[0][2] == pytest.approx(2.0, abs=0.02)


def test_batch_sizes_never_seen_are_less_sure_the_further_they_are() -> None:
    values = np.array([1.0, 1.4, 0.9, 1.3, 1.1])
    at = np.log([512.0, 700.0, 1000.0, 4000.0])
    _, variance = along(SIZES, values, np.full(5, 1e-4), at)
    assert (np.diff(variance) > 0).all()
    _, below = along(SIZES, values, np.full(5, 1e-4), np.log([32.0, 20.0, 8.0]))
    assert (np.diff(below) > 0).all()


@given(
    values=st.lists(st.floats(-3, 6), min_size=1, max_size=8),
    error=st.floats(1e-4, 1.0),
    shift=st.floats(-3, 3),
)
@settings(max_examples=50, deadline=None)
def test_a_common_shift_moves_everything_alike(values: list[float], error: float, shift: float) -> None:
    at = np.log(32.0) + 0.5 * np.arange(len(values))
    y, errors = np.array(values), np.full(len(values), error)
    mean, variance = along(at, y, errors, at)
    moved, same = along(at, y + shift, errors, at)
    assert moved == pytest.approx(mean + shift, abs=1e-6)
    assert same == pytest.approx(variance, abs=1e-9)
    assert (mean >= y.min() - 1e-6).all()
    assert (mean <= y.max() + 1e-6).all()
