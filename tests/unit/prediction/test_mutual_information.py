from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.prediction.samples.isotonic import BINS, binned, mutual_information, weights

columns = st.integers(2, 60).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-20, 20), min_size=n, max_size=n)] * 3)
)


def test_bins_are_of_equal_frequency():
    assert np.bincount(binned(np.random.default_rng(0).normal(size=200))).tolist() == [20] * BINS


def test_mutual_information_of_a_column_with_itself_is_its_entropy():
    x = np.arange(100.0)
    assert mutual_information(x, x) == pytest.approx(np.log2(10))
    assert mutual_information(x, np.ones(100)) == 0.0


def test_mutual_information_by_hand():
    # two bins each (4 rows): x splits 2/2, y too, independent
    assert mutual_information(np.array([1.0, 1, 2, 2]), np.array([1.0, 2, 1, 2])) == pytest.approx(0.0)
    assert mutual_information(np.array([1.0, 1, 2, 2]), np.array([5.0, 5, 9, 9])) == pytest.approx(1.0)


def test_weights_follow_the_published_formula():
    x, noise = np.arange(100.0), np.tile([0.0, 1.0], 50)
    by_hand = [1 - 1 / (mutual_information(c, x) + 1) for c in (x, noise)]
    assert weights([x, noise], x) == pytest.approx([m / sum(by_hand) for m in by_hand])


@settings(max_examples=30, deadline=None)
@given(columns)
def test_weights_sum_to_one_and_ignore_units(drawn):
    a, b, y = (np.array(c, dtype=float) for c in drawn)
    found = weights([a, b], y)
    assert sum(found) == pytest.approx(1.0)
    assert all(w >= 0 for w in found)
    assert weights([np.exp(a / 10), 3 * b - 7], y**3) == pytest.approx(found)


def test_weights_are_equal_where_nothing_is_told():
    assert weights([np.ones(9), np.ones(9)], np.arange(9.0)) == (0.5, 0.5)
