"""Parses GPUs, ``a100:1..8,t4:4``, and ranges of whole numbers, ``32..4096``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from coadapt.errors import InputError, UnknownNameError
from coadapt.model.hardware import find_gpu

#: GPUs of any type.
ANY_GPU = "gpu"
_PART = re.compile(r"\s*(?:([A-Za-z][\w-]*)\s*:?)?\s*(?:(\d{1,9})(?:\s*(?:\.\.|-)\s*(\d{1,9}))?)?\s*")
_RANGE = re.compile(r"\s*(\d{1,15})\s*(?:\.\.\s*(\d{1,15}))?\s*")


class GpuRange(NamedTuple):
    """A GPU type and a range of counts, as in ``a100:1..8``."""

    gpu_type: str
    low: int
    high: int


def parse_gpus(text: str, *, nodes: int = 1) -> list[GpuRange]:
    """Types and ranges in ``a100:1..8,t4:4``, ``8`` or ``1..8``; a type alone means one GPU of it.

    ``nodes``: number of nodes, where the text gives the GPUs of each.
    """
    found = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if not match or not part.strip():
            raise InputError(
                f"GPUs {part.strip()[:60]!r} are not valid; write for example a100:1..8, t4:4 or 1..8"
            )
        low = int(match[2] or 1)
        high = int(match[3] or match[2] or 1)
        if not 1 <= low <= high:
            raise InputError(
                f"GPUs {part.strip()!r}: {low}..{high} is not a range; it must begin with 1 or more and end no lower"
            )
        found.append(GpuRange((match[1] or ANY_GPU).lower(), low * nodes, high * nodes))
    return found


def parse_range(name: str, text: str) -> tuple[int, int]:
    """Parse a range of whole numbers, ``32..4096``, or a single one; ``name`` is for messages."""
    match = _RANGE.fullmatch(text)
    if not match or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise InputError(f"{name} {text[:60]!r} is not a range; write for example 32..4096 or 256")
    return int(match[1]), int(match[2] or match[1])


@lru_cache(1024)
def gpu_name(text: str) -> str:
    """Canonical name of a GPU type: ``T4``, ``NVIDIA T4`` and ``t4`` are ``t4``.

    A type without a datasheet keeps its own name, in lower case.
    """
    try:
        return find_gpu(text).name
    except UnknownNameError:
        return text.strip().lower()
