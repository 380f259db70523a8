"""Passes to a target from runs that stopped when they reached it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.prediction.samples.crossings import chance_reached, crossings_of, log_passes
from coadapt.prediction.samples.passes import passes_to
from coadapt.prediction.samples.sample_table import MetricSample, MetricTable, metric_table

TARGET = 0.759


def needed(batch: float) -> float:
    """Passes to the target of the made-up task: a hyperbola."""
    return 30.0 * (1 + batch / 20_000.0)


def stopped(batches: list[int], *, repeat: int = 3, scatter: float = 0.0, beyond: int = 0) -> MetricTable:
    """Runs evaluated every pass that stop at the target, or some passes later."""
    rng, samples = np.random.default_rng(0), []
    for number, batch in enumerate(b for b in batches for _ in range(repeat)):
        end = max(round(needed(batch) * np.exp(scatter * rng.normal())), 2)
        for done in range(1, end + beyond + 1):
            metric = TARGET + 0.001 * (done - end) / end + (0.0005 if done >= end else -0.0005)
            samples.append(MetricSample(batch=batch, epochs=float(done), metric=metric, run=number))
    return metric_table(samples, higher_is_better=True)


def test_a_batch_size_that_was_never_run_is_on_the_hyperbola() -> None:
    table = stopped([1024, 2048, 8192, 16384])
    found = passes_to(table, TARGET, np.array([4096.0, 32768.0]))
    np.testing.assert_allclose(found.passes, [needed(4096), needed(32768)], rtol=0.06)
    assert found.log_sd[1] > found.log_sd[0]
    assert np.all(found.reached > 0.95)


def test_runs_that_all_reached_the_target_are_not_doubted_for_standing_just_at_it() -> None:
    # metrics of runs that stop are never above the target by more than one evaluation
    found = passes_to(stopped([1024, 4096]), TARGET, np.array([1024.0]))
    assert found.reached[0] > 0.97
    assert found.passes[0] == pytest.approx(needed(1024), rel=0.05)


def test_runs_that_went_on_are_curves() -> None:
    assert crossings_of(stopped([1024, 4096], beyond=10), TARGET) is None


def test_samples_of_unknown_runs_are_no_crossings() -> None:
    known = stopped([1024, 4096])
    samples = [MetricSample(batch=s.batch, epochs=s.epochs, metric=s.metric) for s in known.samples]
    assert crossings_of(metric_table(samples, higher_is_better=True), TARGET) is None


def test_a_metric_that_falls_crosses_from_above() -> None:
    table = stopped([1024, 4096])
    falling = metric_table(
        [MetricSample(batch=s.batch, epochs=s.epochs, metric=1 - s.metric, run=s.run) for s in table.samples],
        higher_is_better=False,
    )
    rising = crossings_of(table, TARGET)
    found = crossings_of(falling, 1 - TARGET)
    assert rising is not None
    assert found is not None
    np.testing.assert_array_equal(found.log_passes, rising.log_passes)


def test_runs_that_went_on_for_long_below_the_target_lower_the_chance_at_their_batch_size() -> None:
    good = stopped([1024, 2048, 4096])
    hopeless = [
        MetricSample(batch=65536, epochs=float(10 * done), metric=0.5, run=100 + number)
        for number in range(3)
        for done in range(1, 100)
    ]
    short = [
        MetricSample(batch=65536, epochs=float(done), metric=0.5, run=100 + number)
        for number in range(3)
        for done in range(1, 5)
    ]
    at = np.log([2048.0, 65536.0])
    for more, low in ((hopeless, True), (short, False)):
        found = crossings_of(metric_table([*good.samples, *more], higher_is_better=True), TARGET)
        assert found is not None
        near, far = chance_reached(found, at)
        assert near > 0.9
        assert (far < 0.6) == low


@given(
    batches=st.lists(st.integers(1, 10**6), min_size=1, max_size=8, unique=True),
    repeat=st.integers(1, 3),
    scatter=st.floats(0, 0.5),
    asked=st.floats(1, 1e7),
)
def test_answers_are_finite_and_a_sampled_size_is_better_known_than_one_far_away(
    batches: list[int], repeat: int, scatter: float, asked: float
) -> None:
    found = crossings_of(stopped([64 + b % 50_000 for b in batches], repeat=repeat, scatter=scatter), TARGET)
    if found is None:
        return
    middle, sd = log_passes(found, np.log([asked]))
    assert np.isfinite(middle).all()
    assert (sd > 0).all()
    there, far = log_passes(found, np.array([found.log_batches[0], found.log_batches[0] + 10]))[1]
    assert there <= far
