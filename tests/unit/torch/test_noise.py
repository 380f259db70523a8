"""The noise scale from norms: unbiased for any parts, cautious with few samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from coadapt.torch.noise import NoiseAverage, Sample, estimate


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


def test_average_starts_unbiased_and_skips_what_is_not_finite() -> None:
    average = NoiseAverage()
    average.add(Sample(2.0, 6.0), 1.0)
    assert average.grad == pytest.approx((2.0, 6.0))
    average.add(Sample(math.nan, 1.0), 1.0)
    average.add(Sample(1.0, math.inf), 1.0)
    assert average.grad == pytest.approx((2.0, 6.0))
    assert average.samples == 1


def test_successive_gradients_count_as_five_better_samples_and_are_followed_where_there_are_no_others() -> (
    None
):
    average = NoiseAverage(10)
    for _ in range(300):
        average.add(Sample(9.0, 9.0, successive=True), 1.0)
    average.add(Sample(3.0, 3.0), 1.0)
    # five of nine and one of three
    assert average.grad == pytest.approx((8.0, 8.0), rel=0.01)
    assert not average.successive
    for _ in range(600):
        average.add(Sample(1.0, 2.0), 1.0)
    assert average.grad == pytest.approx((1.0, 2.0), rel=0.01)
    # back at one pass on one replica: noise must not stand still
    for _ in range(500):
        average.add(Sample(9.0, 9.0, successive=True), 1.0)
    assert average.grad == pytest.approx((9.0, 9.0), rel=0.05)


def test_larger_batches_count_for_more() -> None:
    slow, fast = NoiseAverage(), NoiseAverage()
    for average, scale in ((slow, 1.0), (fast, 64.0)):
        for _ in range(100):
            average.add(Sample(1.0, 1.0), scale)
        for _ in range(100):
            average.add(Sample(2.0, 1.0), scale)
    assert slow.grad[0] < 1.6 < 1.9 < fast.grad[0]


def test_rare_samples_are_not_forgotten_by_the_next_one() -> None:
    average = NoiseAverage(50)
    for _ in range(60):
        average.add(Sample(1.0, 1.0), 1.0, 200)
    average.add(Sample(31.0, 1.0), 1.0, 200)
    assert average.grad[0] < 3
    assert NoiseAverage(10).smoothing < NoiseAverage(200).smoothing < NoiseAverage(10**6).smoothing == 0.999


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_cautious_never_takes_the_gradient_for_smaller(values: list[float]) -> None:
    average = NoiseAverage()
    for value in values:
        average.add(Sample(value, 1.0), 1.0)
    assert average.cautious[0] >= average.grad[0]
    assert math.isfinite(average.cautious[0])


def test_cautious_comes_to_the_mean_with_many_samples() -> None:
    average, rng = NoiseAverage(), np.random.default_rng(0)
    for value in rng.normal(1.0, 2.0, 3000):
        average.add(Sample(float(value), 1.0), 1.0)
    assert average.cautious[0] == pytest.approx(average.grad[0], rel=0.2)
    fresh = NoiseAverage()
    fresh.add(Sample(0.0, 4.0), 1.0)
    # one sample that says "only noise" is not believed
    assert fresh.cautious[0] >= 4.0


def test_state_is_restored_whole() -> None:
    one, other = NoiseAverage(), NoiseAverage()
    for value in (1.0, 2.0, 4.0):
        one.add(Sample(value, value, successive=True), 2.0, 3)
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert (other.grad, other.cautious, other.successive) == (one.grad, one.cautious, True)
