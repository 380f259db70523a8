from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Configuration, Measurement
from coadapt.predict.overheads import (
    KINDS,
    MAX_DURATIONS,
    OverheadTable,
    fit,
    observe,
    predict,
    total,
    unknown,
)

EMPTY = OverheadTable()


def a_report(**overheads_s):
    return Measurement(config=Configuration(nodes=1, replicas=1, atomic_batch=1), overheads_s=overheads_s)


def a_table(kind, durations):
    table = EMPTY
    for seconds in durations:
        table = observe(table, a_report(**{kind: seconds}))
    return table


def test_a_slow_occurrence_in_ten_does_not_move_the_prediction():
    usual = [10.0, 10.5, 9.5, 10.2, 9.8, 10.1, 9.9, 10.3, 9.7]
    params = fit(a_table("checkpoint", [*usual, 200.0]))
    assert params is not None
    found = predict(params, "checkpoint")
    assert found is not None
    assert found.value == pytest.approx(10.0, rel=0.03)
    assert found.high < 15


def test_intervals_hold_four_of_five_durations():
    rng = np.random.default_rng(1)
    held = []
    for _ in range(200):
        durations = 30 * np.exp(rng.normal(0, 0.4, 9))
        params = fit(a_table("setup", durations[:-1]))
        assert params is not None
        found = predict(params, "setup")
        assert found is not None
        held.append(found.low <= durations[-1] <= found.high)
    assert 0.72 <= np.mean(held) <= 0.88


def test_one_duration_gives_a_wide_interval_and_many_a_narrow_one():
    def width(count):
        params = fit(a_table("validation", [5.0] * count))
        assert params is not None
        found = predict(params, "validation")
        assert found is not None
        return found.high / found.low

    assert width(1) > 2 > width(40)


def test_total_adds_occurrences_and_names_what_is_unknown():
    table = observe(observe(EMPTY, a_report(setup=20.0, checkpoint=4.0)), a_report(checkpoint=4.0))
    params = fit(table)
    assert params is not None
    found = total(params, {"setup": 1, "checkpoint": 10, "validation": 5})
    assert found.value == pytest.approx(60.0)
    assert 0 < found.low < 60.0 < found.high
    assert unknown(params) == ("first_pass", "validation")
    assert unknown(None) == KINDS
    assert predict(params, "validation") is None


def test_prior_fills_kinds_this_job_has_not_reported():
    before = fit(observe(EMPTY, a_report(setup=100.0, validation=7.0)))
    params = fit(observe(EMPTY, a_report(setup=20.0)), before)
    assert params is not None
    assert [(k.kind, round(k.median_s)) for k in params.kinds] == [("setup", 20), ("validation", 7)]
    assert fit(EMPTY) is None
    assert fit(EMPTY, before) == before


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_what_is_no_duration_is_ignored(seconds):
    assert observe(EMPTY, a_report(setup=seconds)) is EMPTY
    assert observe(EMPTY, a_report()) is EMPTY


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=200))
def test_table_is_bounded_and_keeps_the_middle(durations):
    params = fit(a_table("setup", durations))
    assert params is not None
    (known,) = params.kinds
    assert known.count <= MAX_DURATIONS
    assert min(durations) <= known.median_s * (1 + 1e-9) + 1e-3
    assert known.median_s <= max(max(durations), 1e-3) * (1 + 1e-9)
