"""One interval for predictions and for the API: no upper bound is None as data, infinity as a number."""

from __future__ import annotations

import math

import msgspec
import pytest

from coadapt.model import Interval


def test_interval_without_upper_bound_survives_json() -> None:
    endless = Interval(value=2.0, low=1.0, high=math.inf)
    assert endless == Interval(value=2.0, low=1.0)
    assert msgspec.json.encode(endless) == b'{"value":2.0,"low":1.0,"high":null}'
    assert msgspec.json.decode(msgspec.json.encode(endless), type=Interval) == endless
    assert endless.upper == math.inf


@pytest.mark.parametrize("high", [3.0, math.inf])
def test_interval_shifts_and_scales_its_bounds(high: float) -> None:
    known = Interval(value=2.0, low=1.0, high=high)
    assert known.shifted(10.0) == Interval(value=12.0, low=11.0, high=high + 10)
    assert known.scaled(2.0) == Interval(value=4.0, low=2.0, high=high * 2)
