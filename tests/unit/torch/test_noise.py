"""The noise scale from norms: unbiased for any parts, with and without an end to the examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from coadapt.torch.training.noise_scale import estimate


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.integers(1, 64))
def test_estimate_recovers_what_expectations_are_made_of(sizes: list[int], initial: int) -> None:
    true_sqr, spread, batch = 3.0, 70.0, sum(sizes)
    mean_sqr = float(np.mean([true_sqr + spread / size for size in sizes]))
    found = estimate(
        mean_sqr,
        true_sqr + spread / batch,
        batch=batch,
        mean_inverse=float(np.mean([1 / size for size in sizes])),
        initial_batch=initial,
    )
    assert found == pytest.approx((true_sqr, spread / initial))


def test_estimate_is_the_published_pair_for_equal_parts() -> None:
    n, atomic, initial, local, total = 4, 16, 32, 5.0, 2.0
    found = estimate(local, total, batch=n * atomic, mean_inverse=1 / atomic, initial_batch=initial)
    scale = n * atomic / initial
    assert found == pytest.approx(((n * total - local) / (n - 1), (local - total) * scale / (n - 1)))


@pytest.mark.parametrize(("mean_sqr", "parts"), [(math.nan, 4), (math.inf, 4), (1.0, 1)])
def test_estimate_says_nothing_of_what_is_no_number_or_one_part(mean_sqr: float, parts: int) -> None:
    assert estimate(mean_sqr, 1.0, batch=8 * parts, mean_inverse=1 / 8, initial_batch=8) is None


@given(st.integers(2, 8), st.integers(1, 20), st.floats(0, 5), st.floats(1, 100))
def test_estimate_knows_that_no_example_of_a_pass_comes_twice(
    parts: int, size: int, true_sqr: float, spread: float
) -> None:
    population, batch = 200, parts * size
    # the mean of b out of N without replacement strays from the mean of all by S (1 / b - 1 / N)
    found = estimate(
        true_sqr + spread * (1 / size - 1 / population),
        true_sqr + spread * (1 / batch - 1 / population),
        batch=batch,
        mean_inverse=1 / size,
        initial_batch=8,
        population=population,
    )
    assert found == pytest.approx((true_sqr, spread / 8), abs=1e-9)


def test_estimate_of_a_whole_pass_is_its_gradient() -> None:
    found = estimate(5.0, 2.0, batch=64, mean_inverse=1 / 32, initial_batch=8, population=64)
    assert found is not None
    assert found[0] == 2.0
    # two steps in a row, of two passes: more examples than there are
    found = estimate(5.0, 2.0, batch=64, mean_inverse=1 / 32, initial_batch=8, population=40)
    assert found is not None
    assert found[0] == 2.0
