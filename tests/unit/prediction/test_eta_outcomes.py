from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.prediction.remaining.eta_estimate import MOST, Outcome, calibrated, outcome

positive = st.floats(1e-6, 1e9)
shares = st.floats(0, 1)


def test_without_outcomes_an_interval_is_as_stated() -> None:
    found = calibrated(100.0, 0.2, 0.5)
    assert found.value == pytest.approx(100.0)
    assert found.low == pytest.approx(100 * math.exp(-1.28 * 0.2), rel=0.02)
    assert found.upper == pytest.approx(100 * math.exp(1.28 * 0.2), rel=0.02)


def test_a_bias_of_all_runs_goes() -> None:
    late = [Outcome(share=0.5, error=-1.0 + 0.01 * n) for n in range(-100, 101)]
    found = calibrated(100.0, 0.1, 0.5, late)
    assert found.value == pytest.approx(100 * math.exp(-0.1), rel=0.01)
    assert found.low < found.value < found.upper < 100 * math.exp(0.05)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_intervals_hold_as_often_as_they_say_whatever_the_predictor_claims(scale: float) -> None:
    rng = np.random.default_rng(7)
    past: list[Outcome] = []
    held = []
    for _ in range(1000):
        share, real = float(rng.uniform()), float(np.exp(scale * 0.2 * rng.standard_t(4)))
        estimate = calibrated(1.0, 0.2, share, past)
        held.append(estimate.low <= real <= estimate.upper)
        became = outcome(share, 1.0, 0.2, real)
        assert became is not None
        past.append(became)
    assert 0.75 < float(np.mean(held[100:])) < 0.85


def test_outcomes_of_the_same_age_count_most() -> None:
    past = [Outcome(share=0.05, error=3.0)] * 100 + [Outcome(share=0.9, error=-3.0)] * 100
    assert calibrated(1.0, 0.2, 0.05, past).value > 1.5
    assert calibrated(1.0, 0.2, 0.9, past).value < 0.7


def test_only_the_latest_outcomes_count() -> None:
    old, new = [Outcome(share=0.5, error=5.0)] * 500, [Outcome(share=0.5, error=0.0)] * MOST
    assert calibrated(1.0, 0.2, 0.5, old + new) == calibrated(1.0, 0.2, 0.5, new)


@given(
    seconds=positive, deviation=st.floats(0, 5), share=shares, errors=st.lists(st.floats(-9, 9), max_size=40)
)
def test_every_estimate_is_in_order_and_a_number(
    seconds: float, deviation: float, share: float, errors: list[float]
) -> None:
    found = calibrated(seconds, deviation, share, [Outcome(share=share, error=each) for each in errors])
    assert 0 < found.low <= found.value <= found.upper < math.inf
    assert found.upper / found.low <= math.exp(6) * (1 + 1e-9)


@given(share=shares, predicted_s=positive, deviation=st.floats(1e-3, 3), real_s=positive)
def test_an_outcome_says_by_how_much_it_was_off(
    share: float, predicted_s: float, deviation: float, real_s: float
) -> None:
    became = outcome(share, predicted_s, deviation, real_s)
    assert became is not None
    assert predicted_s * math.exp(became.error * deviation) == pytest.approx(real_s, rel=1e-6)


@pytest.mark.parametrize(
    ("predicted_s", "deviation", "real_s"),
    [(0.0, 0.1, 5.0), (5.0, 0.0, 5.0), (5.0, 0.1, 0.0), (math.nan, 0.1, 1.0), (math.inf, 0.1, 1.0)],
)
def test_what_is_no_prediction_has_no_outcome(predicted_s: float, deviation: float, real_s: float) -> None:
    assert outcome(0.5, predicted_s, deviation, real_s) is None


@pytest.mark.parametrize(
    ("seconds", "deviation"), [(-1.0, 0.1), (math.nan, 0.1), (math.inf, 0.1), (1.0, math.nan)]
)
def test_nonsense_is_refused(seconds: float, deviation: float) -> None:
    with pytest.raises(InputError):
        calibrated(seconds, deviation, 0.5)
