"""TensorBoard event files: records with a wall time, a step and scalar values.

A record is (length, checksum, data, checksum) in TFRecord's framing; its data is the protocol buffer ``Event``: wall_time = 1
(double), step = 2 (varint), summary = 5 with values of tag = 1, simple_value = 2 (float), tensor = 8. Checksums are not verified: a
damaged record gives a value less, and the framing tells where the next one begins.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import ClassVar

from coadapt.prediction.training_log.patterns import NOT_METRICS
from coadapt.prediction.training_log.reading import Reading

#: Larger records hold images or graphs.
_LARGEST = 1 << 26
_MOST_TAG = 80


class TensorBoard:
    """Reads event files."""

    name: ClassVar[str] = "tensorboard"
    order: ClassVar[int] = 2
    marks: ClassVar[tuple[str, ...]] = ("brain.Event:",)

    def parse(self, line: str) -> Reading | None:
        """Event files have no lines."""
        return None

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is an event file."""
        return b"brain.Event:" in head[:64]

    def records(self, data: bytes) -> tuple[Sequence[Reading], bytes]:
        """Read the whole records in ``data``; also returns the bytes of the last one if it is incomplete."""
        found: list[Reading] = []
        at = 0
        while at + 12 <= len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            if length > _LARGEST:
                return found, b""  # damaged: nothing tells where the next record begins
            end = at + 12 + length + 4
            if end > len(data):
                break
            reading = _event(data[at + 12 : at + 12 + length])
            if reading is not None:
                found.append(reading)
            at = end
        return found, data[at:]


def _event(data: bytes) -> Reading | None:
    wall, step, metrics = None, 0, {}
    try:
        for field, value in _fields(data):
            if field == 1 and isinstance(value, bytes) and len(value) == 8:
                (wall,) = struct.unpack("<d", value)
            elif field == 2 and isinstance(value, int):
                step = value
            elif field == 5 and isinstance(value, bytes):
                metrics = dict(_values(value))
    except (IndexError, struct.error):
        return None
    if wall is None or not math.isfinite(wall) or not metrics or not 0 <= step < 1 << 60:
        return None
    return Reading(form="TensorBoard", step=step, overall=True, stamp_s=wall, metrics=metrics)


def _values(data: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _fields(data):
        if field != 1 or not isinstance(value, bytes):
            continue
        tag, number = "", None
        for inner, each in _fields(value):
            if inner == 1 and isinstance(each, bytes):
                tag = each[:_MOST_TAG].decode("utf-8", "replace")
            elif inner == 2 and isinstance(each, bytes) and len(each) == 4:
                (number,) = struct.unpack("<f", each)
            elif inner == 8 and isinstance(each, bytes):
                number = _tensor(each)
        if tag and number is not None and tag.lower() not in NOT_METRICS:
            yield tag, number


def _tensor(data: bytes) -> float | None:
    """The value of a tensor with one number: float_val = 5, or four bytes of tensor_content = 4."""
    for field, value in _fields(data):
        if field in (4, 5) and isinstance(value, bytes) and len(value) == 4:
            found: float = struct.unpack("<f", value)[0]
            return found
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protocol buffer: varints as numbers, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, 0)
            if not size:
                raise IndexError("a group, or no protocol buffer")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return found, at
        shift += 7
        if shift > 63:
            raise IndexError("too long for a number")
