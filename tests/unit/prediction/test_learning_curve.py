from __future__ import annotations

import math

import numpy as np
import pytest

from coadapt.prediction.remaining.learning_curve import HORIZON, arrival, last_step


def a_curve(shape, count=20, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return [(float(k), shape(k) + noise * rng.normal()) for k in range(1, count + 1)]


def median(found):
    order = np.argsort(found.work)
    middle = np.cumsum(np.array(found.weight)[order])
    return float(np.array(found.work)[order][np.searchsorted(middle, 0.5)])


SHAPES = {
    "inverse": lambda k: 1 / (0.4 * k + 0.5) + 0.3,
    "power": lambda k: 0.2 + (1 + k) ** -0.7,
    "exponential": lambda k: 0.1 + math.exp(-k / 8),
}


@pytest.mark.parametrize("name", SHAPES)
def test_arrival_finds_the_family_by_its_evidence_and_the_place(name):
    found = arrival(a_curve(SHAPES[name]), SHAPES[name](30), rising=False)
    assert found is not None
    assert found.family == name
    assert median(found) == pytest.approx(30, rel=0.12)


def test_arrival_of_a_rising_metric_is_that_of_its_mirror_image():
    falling = a_curve(SHAPES["power"], noise=0.01)
    rising = [(k, -y) for k, y in falling]
    assert arrival(falling, 0.3, rising=False) == arrival(rising, -0.3, rising=True)


def test_arrival_is_never_below_the_plateau():
    found = arrival(a_curve(SHAPES["exponential"], count=40, noise=0.002), 0.05, rising=False)
    assert found is not None
    assert found.never > 0.9


def test_arrival_of_a_constant_is_never():
    found = arrival([(float(k), 0.7) for k in range(10)], 0.5, rising=False)
    assert found is not None
    assert (found.never, found.work, found.family) == (1.0, (), "constant")


def test_arrival_of_a_worsening_metric_is_never():
    found = arrival([(float(k), 1 + 0.1 * k) for k in range(1, 12)], 0.5, rising=False)
    assert found is not None
    assert found.never == pytest.approx(1.0)


def test_arrival_leaves_out_what_is_no_number_and_work_that_goes_back():
    clean = a_curve(SHAPES["power"])
    dirty = [*clean[:5], (5.5, math.nan), (6.0, math.inf), (3.0, 9.0), *clean[5:]]
    assert arrival(dirty, 0.35, rising=False) == arrival(clean, 0.35, rising=False)
    assert arrival([(float(k), math.nan) for k in range(20)], 0.5, rising=False) is None


def test_arrival_needs_points():
    assert arrival(a_curve(SHAPES["power"], count=3), 0.3, rising=False) is None


def test_arrival_is_where_the_target_was_met():
    found = arrival([(1.0, 0.9), (2.0, 0.5), (3.0, 0.6), (4.0, 0.4)], 0.55, rising=False)
    assert found is not None
    assert (found.family, found.work, found.never) == ("reached", (2.0,), 0.0)


def test_arrival_lies_ahead_and_within_the_horizon():
    points = a_curve(SHAPES["inverse"], noise=0.02, seed=3)
    found = arrival(points, 0.33, rising=False)
    assert found is not None
    assert all(20.0 < work <= 20.0 * (1 + HORIZON) for work in found.work)
    assert sum(found.weight) == pytest.approx(1.0)


def test_arrival_is_wider_after_a_learning_rate_step():
    before = [(float(k), 0.9 + 0.01 * (-1) ** k) for k in range(1, 31)]
    after = [(30.0 + k, 0.4 + 0.2 * math.exp(-k / 4) + 0.01 * (-1) ** k) for k in range(1, 7)]
    work, y = np.array(before + after).T
    assert last_step(work, y) == 30
    found = arrival(before + after, 0.42, rising=False)
    assert found is not None
    assert found.points == 6
    assert found.never < 0.5


def test_last_step_is_none_on_a_smooth_or_noisy_curve():
    for shape in SHAPES.values():
        for noise in (0.0, 0.02):
            work, y = np.array(a_curve(shape, count=40, noise=noise, seed=1)).T
            assert last_step(work, y) == 0
