"""Shapes as users write them."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.spec.input_shape import MOST_NUMBERS, check_batch, parse_shape


@given(st.lists(st.integers(1, 10**5), max_size=5), st.sampled_from(["", "float", "int", "long", "bool"]))
def test_a_shape_is_read_as_written_or_too_large(sizes: list[int], kind: str) -> None:
    text = "x".join(map(str, sizes)) + (f":{kind}" if kind else "")
    if math.prod(sizes) > MOST_NUMBERS:
        with pytest.raises(InputError, match="more than 1,000,000,000 numbers"):
            parse_shape(text)
    else:
        assert parse_shape(text) == (tuple(sizes), kind or "float")


@given(st.text(max_size=40))
def test_any_text_is_a_shape_or_refused(text: str) -> None:
    with suppress(InputError):
        sizes, _ = parse_shape(text)
        assert all(size > 0 for size in sizes)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("-3x5", "is not a shape"),
        ("3x-5", "is not a shape"),
        ("3x0x5", "is not a shape"),
        ("3x", "is not a shape"),
        ("3x٣", "is not a shape"),
        ("1_0", "is not a shape"),
        ("9" * 30, "more than"),
        ("9" * 5000, "more than"),
        ("1000000x1000000", "more than"),
        ("3:image", "unknown type 'image'"),
    ],
)
def test_what_is_no_shape_says_why_in_a_short_line(text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as error:
        parse_shape(text)
    assert len(str(error.value)) < 200


def test_a_batch_that_nothing_holds_is_refused() -> None:
    check_batch(["3x224x224", "128:int"], 4096)
    with pytest.raises(InputError, match="does not fit on any device"):
        check_batch(["1000x1000"], 10**9 + 1)
