"""What is believed of the noise scale: on paths made up here, of which the truth is known at every step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from coadapt.torch.training.noise_scale import (
    NoiseFilter,
    Sample,
    estimate,
)

EPOCH, M0 = 50, 32


def believed(
    phi: Callable[[float], float],
    *,
    epochs: int = 20,
    scale: float = 1.0,
    every: int = 1,
    dimensions: int = 20,
    seed: int = 0,
    falls: float = 10.0,
) -> list[tuple[float, float]]:
    """(believed, true) noise scale at the end of every epoch: gradients of two parts, drawn from a normal distribution."""
    noise, rng, found = NoiseFilter(EPOCH), np.random.default_rng(seed), []
    steps = round(epochs * EPOCH / scale)
    part = max(round(scale * M0 / 2), 1)
    for step in range(0, steps, every):
        now = step * scale / EPOCH
        # var falls slowly, as it does in training; the gradient makes up for the rest
        spread = 40 * math.exp(-now / falls)
        true = np.zeros(dimensions)
        true[0] = math.sqrt(spread / phi(now))
        parts = true + rng.normal(0, math.sqrt(spread / part / dimensions), (2, dimensions))
        pair = estimate(
            float((parts**2).sum(1).mean()),
            float((parts.mean(0) ** 2).sum()),
            batch=2 * part,
            mean_inverse=1 / part,
            initial_batch=M0,
        )
        assert pair is not None
        noise.add(Sample(*pair), scale, every)
        if int((step + every) * scale / EPOCH) > int(now):
            sqr, var = noise.grad
            found.append((M0 * var / sqr, phi(now)))
    return found


def _shares(found: list[tuple[float, float]]) -> list[float]:
    """Goodput of the batch that the belief asks for over the best, on a device of constant cost 80 examples a step."""

    def goodput(batch: float, phi: float) -> float:
        return batch / (80 + batch) / (phi + batch)

    return [goodput(math.sqrt(80 * each), phi) / goodput(math.sqrt(80 * phi), phi) for each, phi in found]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("phi", [20.0, 100.0, 400.0])
def test_flat_noise_stays_where_it_is(phi: float, seed: int) -> None:
    shares = _shares(believed(lambda _: phi, seed=seed, epochs=40)[5:])
    assert statistics.median(shares) > 0.95
    assert sorted(shares)[2] > 0.8


@pytest.mark.parametrize("dimensions", [20, 100])
@pytest.mark.parametrize("phi", [20.0, 100.0])
def test_flat_noise_that_can_be_told_is_told_without_much_bias(phi: float, dimensions: int) -> None:
    found = [
        each for seed in range(3) for each in believed(lambda _: phi, seed=seed, dimensions=dimensions)[4:]
    ]
    assert statistics.median(each for each, _ in found) == pytest.approx(phi, rel=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_growing_noise_is_followed(seed: int) -> None:
    # tenfold within five epochs, as on digits when the rate falls; batches have grown by then
    found = believed(lambda epoch: 100 * 10 ** (max(epoch - 10, 0) / 5), scale=8, seed=seed)
    assert statistics.median(_shares(found[12:])) > 0.95
    # not only in goodput: no more than a factor of three behind
    assert statistics.median(each / phi for each, phi in found[12:]) > 1 / 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("before", "after"), [(2000.0, 100.0), (100.0, 1000.0)])
def test_noise_that_jumps_is_believed_within_two_epochs(before: float, after: float, seed: int) -> None:
    found = believed(lambda epoch: before if epoch < 10 else after, scale=8, seed=seed)
    assert statistics.median(_shares(found[12:])) > 0.93
    assert min(_shares(found[12:])) > 0.75


@pytest.mark.parametrize("seed", range(4))
def test_what_cannot_be_told_from_zero_is_taken_for_large(seed: int) -> None:
    # chance in one sample is some two hundred times what is asked for: ten times the batch is all that can be said
    found = believed(lambda _: 20000.0, seed=seed, epochs=60, dimensions=8)
    assert all(each > 10 * M0 for each, _ in found[10:])
    assert all(math.isfinite(each) for each, _ in found)


@pytest.mark.parametrize("seed", range(2))
def test_rare_samples_are_not_forgotten_by_the_next_one(seed: int) -> None:
    found = believed(lambda _: 100.0, epochs=2000, every=200, seed=seed, falls=math.inf)
    assert statistics.median(_shares(found[200:])) > 0.95


@pytest.mark.parametrize("seed", range(4))
def test_growing_noise_is_followed_by_one_sample_in_an_epoch(seed: int) -> None:
    noise, rng, ratio = NoiseFilter(EPOCH), np.random.default_rng(seed), 0.2
    for epoch in range(14):
        if 6 <= epoch < 11:
            ratio /= 2
        noise.add(Sample(ratio + 0.02 * rng.normal(), 1.0), 16, EPOCH // 16)
    sqr, var = noise.grad
    assert 1 / 3 < sqr / var / ratio < 3.5


def test_a_wild_sample_counts_for_one() -> None:
    noise = NoiseFilter(EPOCH)
    for _ in range(100):
        noise.add(Sample(1.0, 4.0), 1.0)
    before = noise.grad
    noise.add(Sample(1000.0, 4.0), 1.0)
    assert noise.grad[0] < 2 * before[0]
    noise.add(Sample(-1000.0, 4.0), 1.0)
    assert noise.grad[0] > before[0] / 2


def test_what_is_not_finite_is_skipped_and_nothing_is_known_at_first() -> None:
    noise = NoiseFilter()
    assert (noise.known, noise.grad) == (False, (0.0, 0.0))
    noise.add(Sample(math.nan, 1.0), 1.0)
    noise.add(Sample(1.0, math.inf), 1.0)
    assert not noise.known


def test_one_sample_that_says_only_noise_is_not_believed() -> None:
    noise = NoiseFilter()
    noise.add(Sample(0.0, 4.0), 1.0)
    assert noise.grad[0] > 1.0
    noise = NoiseFilter()
    noise.add(Sample(-8.0, 4.0), 1.0)
    assert noise.grad[0] > 0.5


def test_no_noise_at_all_is_no_noise() -> None:
    noise = NoiseFilter()
    noise.add(Sample(3.0, 0.0), 1.0)
    assert noise.grad == (3.0, 0.0)


def test_better_samples_soon_outweigh_successive_ones() -> None:
    noise = NoiseFilter(EPOCH)
    for _ in range(300):
        noise.add(Sample(0.2, 10.0, successive=True), 1.0)
    assert noise.successive
    for _ in range(20):
        noise.add(Sample(2.0, 10.0), 4.0)
    assert not noise.successive
    assert noise.grad[0] == pytest.approx(2.0, rel=0.3)


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=40),
    st.floats(0.01, 1e4),
)
def test_belief_is_finite_whatever_comes(values: list[tuple[float, float]], scale: float) -> None:
    noise = NoiseFilter(EPOCH)
    for sqr, var in values:
        noise.add(Sample(sqr, var), scale)
        assert all(math.isfinite(each) and each >= 0 for each in noise.grad)


def test_state_is_restored_whole() -> None:
    one, other = NoiseFilter(EPOCH), NoiseFilter(EPOCH)
    for value in (1.0, 2.0, 4.0):
        one.add(Sample(value, value, successive=True), 2.0, 3)
    other.load_state_dict(one.state_dict())
    for each in (one, other):
        each.add(Sample(1.0, 3.0), 2.0)
    assert other.state_dict() == one.state_dict()
    assert (other.grad, other.successive) == (one.grad, False)


def test_an_older_checkpoint_has_nothing_to_tell() -> None:
    noise = NoiseFilter(EPOCH)
    noise.load_state_dict({"sqr": 1.0, "var": 2.0, "weight": 0.5, "samples": 7})
    assert not noise.known
    assert noise.grad == (0.0, 0.0)
