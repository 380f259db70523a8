"""How large a batch one GPU holds, from what runs have used.

Memory grows with the batch of one backward pass: bytes = fixed + slope x batch, neither below 0. From one run alone all of it is taken to grow,
which errs on the safe side for larger batches. Part of the limit is kept back: fragments and other libraries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coadapt.model import Fact

#: Share of the memory that is planned with.
_USED = 0.94


class MemorySample(Fact, frozen=True):
    """Most bytes that one GPU held at so many examples per backward pass."""

    batch: float
    bytes: float


def largest_batch(samples: Sequence[MemorySample], limit_bytes: float) -> int | None:
    """Examples per backward pass that fit; 0 where not even one does, None where memory does not grow or nothing is known."""
    if not samples:
        return None
    fixed, slope = _line(samples)
    room = _USED * limit_bytes - fixed
    if slope <= 0:
        return None if room >= 0 else 0
    return max(math.floor(room / slope + 1e-9), 0)


def _line(samples: Sequence[MemorySample]) -> tuple[float, float]:
    batch = np.array([sample.batch for sample in samples], dtype=np.float64)
    used = np.array([sample.bytes for sample in samples], dtype=np.float64)
    if len(np.unique(batch)) < 2:
        return 0.0, float((used / batch).max())
    slope = max(float(np.polyfit(batch, used, 1)[0]), 0.0)
    fixed = float((used - slope * batch).mean())
    if fixed < 0:
        return 0.0, float((used * batch).sum() / (batch**2).sum())
    return fixed, slope
