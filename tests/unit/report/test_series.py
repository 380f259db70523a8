from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.report import StepSeries


def test_series_gives_the_mean_of_each_bin() -> None:
    series = StepSeries(limit=4)
    series.set(0, 2)
    series.set(1, 6)
    series.set(3, 0)
    series.advance(4)
    # from 1/64 s the width doubles until four bins reach beyond 4 s: 2 s each
    start, width_s, values = series.binned()
    assert (start, width_s) == (0, 2)
    assert values == [(2 * 1 + 6 * 1) / 2, 6 * 1 / 2]
    assert series.total == 2 * 1 + 6 * 2


def test_series_divides_a_bin_cut_short_by_what_there_is_of_it() -> None:
    series = StepSeries(10.0, limit=4)
    series.set(10, 8)
    series.advance(15)
    assert series.binned() == (10.0, 2, [8, 8, 8])


def test_series_ratio_is_unknown_where_the_weight_is_zero() -> None:
    useful, rated = StepSeries(limit=4), StepSeries(limit=4)
    for series, amount in ((useful, 2), (rated, 4)):
        series.add(2, 4, amount)
        series.advance(6)
    assert useful.binned(rated).values == [None, 0.5, None]


@settings(max_examples=50)
@given(
    steps=st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 100)), max_size=60),
    origin=st.sampled_from([0.0, 1.7e9]),
)
def test_series_keeps_its_integral_within_its_limit(steps: list[tuple[float, int]], origin: float) -> None:
    series = StepSeries(origin, limit=50)
    now, expected, level = origin, 0.0, 0
    for wait, value in steps:
        expected += level * (origin + (now - origin + wait) - now)
        now, level = origin + (now - origin + wait), value
        series.set(now, value)
    binned = series.binned()
    assert series.total == pytest.approx(expected)
    assert len(binned.values) <= 50
    span = now - origin
    extents = [min(binned.width_s, span - i * binned.width_s) for i in range(len(binned.values))]
    integral = sum((v or 0) * e for v, e in zip(binned.values, extents, strict=True))
    assert integral == pytest.approx(expected, rel=1e-6, abs=1e-3)
