"""Bars by type of operation, and the curve of their sum."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.report.operation_times import (
    chart_page,
    largest_operations,
    operation_bars,
    operation_line,
    operation_svg,
    types_for_most,
)
from coadapt.wire.tool_messages import OperationShare


def operations(*seconds: float) -> list[OperationShare]:
    return [OperationShare(name=f"op{i}", seconds=s, calls=i + 1) for i, s in enumerate(seconds)]


def test_bars_are_largest_first_with_their_sum() -> None:
    found = operation_bars(operations(1.0, 6.0, 3.0))
    assert [bar.name for bar in found] == ["op1", "op2", "op0"]
    assert [round(bar.cumulative, 6) for bar in found] == [0.6, 0.9, 1.0]
    assert types_for_most(found) == 2


@pytest.mark.parametrize(("seconds", "most"), [((5.0,), 1), ((1.0,) * 10, 9), ((95.0, 3.0, 2.0), 1)])
def test_types_that_make_most_of_the_time(seconds: tuple[float, ...], most: int) -> None:
    assert types_for_most(operation_bars(operations(*seconds))) == most


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=60), st.integers(1, 20), st.integers(10, 60))
def test_shares_add_up_and_lines_keep_their_width(seconds: list[float], top: int, width: int) -> None:
    found = operation_bars(operations(*seconds))
    assert sum(bar.share for bar in found) == pytest.approx(1.0)
    assert found[-1].cumulative == pytest.approx(1.0)
    assert 1 <= types_for_most(found) <= len(found)
    shown = largest_operations(found, top)
    assert sum(bar.seconds for bar in shown) == pytest.approx(sum(seconds))
    assert sum(bar.calls for bar in shown) == sum(bar.calls for bar in found)
    assert len(shown) <= max(top + 1, 1)
    for bar in shown:
        text = operation_line(bar, width)
        assert len(text) == width
        assert text.count("*") == 1


def test_line_shows_share_sum_and_where_most_is() -> None:
    first, second = operation_bars(operations(5.0, 5.0))
    assert operation_line(first, 10) == "#####*   |"
    assert operation_line(second, 10) == "#####    *"


def test_picture_is_well_formed_and_the_curve_rises() -> None:
    found = operation_bars(operations(4.0, 3.0, 2.0, 1.0))
    root = ElementTree.fromstring(operation_svg(found))
    assert len(root.findall("rect")) == 4
    curve = root.find("polyline")
    assert curve is not None
    across = [float(point.split(",")[0]) for point in curve.attrib["points"].split()]
    assert across == sorted(across)


def test_page_escapes_names_and_needs_no_network() -> None:
    bad = [OperationShare(name="<script>x</script>", seconds=1.0, calls=1)]
    text = chart_page(operation_bars(bad), 15, script="a&b.py", headline="1 of 1")
    assert "<script" not in text
    assert "a&amp;b.py" in text
    assert not re.search(r"https?://|src=", text)
