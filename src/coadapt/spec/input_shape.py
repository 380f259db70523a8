"""Parses the shape of one input example of a model: ``3x224x224``, ``128:int``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coadapt.errors import InputError

#: Types of the numbers of an input.
KINDS = ("float", "int", "long", "bool")
#: Maximum numbers of one example and of one batch; no device could hold more.
MOST_NUMBERS, MOST_IN_BATCH = 10**9, 10**15


def parse_shape(text: str) -> tuple[tuple[int, ...], str]:
    """Parse the shape of one example, without the batch: ``3x224x224``, or with a kind ``128:int``."""
    shape, _, kind = text.partition(":")
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    parts = shape.lower().split("x") if shape else []
    if not all(part.isascii() and part.isdigit() and part.strip("0") for part in parts):
        raise InputError(f"--input {shown!r} is not a shape; write 3x224x224, or 128:int for token ids")
    if kind and kind not in KINDS:
        raise InputError(f"--input {shown!r}: unknown type {kind[:60]!r}; use {', '.join(KINDS)}")
    # Python does not parse numbers with thousands of digits
    sizes = (
        tuple(int(part) for part in parts) if max(map(len, parts), default=0) <= 30 else (MOST_NUMBERS + 1,)
    )
    if math.prod(sizes) > MOST_NUMBERS:
        raise InputError(f"--input {shown!r}: one example has more than {MOST_NUMBERS:,} numbers")
    return sizes, kind or "float"


def check_batch(inputs: Sequence[str], batch: int) -> None:
    """Raise an InputError unless every input is a shape, and a batch of them has a possible size."""
    numbers = sum(math.prod(parse_shape(text)[0]) for text in inputs)
    if numbers * batch > MOST_IN_BATCH:
        raise InputError(f"--batch {batch} of {numbers:,} numbers each does not fit on any device")
