"""LEGW (You et al., 2019): square root of the batch size, and a warm-up whose epochs grow in proportion to the batch."""

from __future__ import annotations

import math

from coadapt.errors import InputError
from coadapt.torch.rates._base import Progress


class Legw:
    """``warmup`` in epochs of work at M0; at a batch of scale x M0 it takes scale times as many."""

    name = "legw"
    order = 40

    def __init__(self, warmup: float = 0.1) -> None:
        if not warmup >= 0:
            raise InputError(f"warmup of {warmup} epochs: it must be 0 or more")
        self.warmup = warmup

    def factor(self, progress: Progress) -> float:
        """See ``RateRule``."""
        scale = max(progress.scale, 1.0)
        ramp = self.warmup * scale
        # the first step would otherwise have no rate at all
        return math.sqrt(scale) * (min(max(progress.epoch / ramp, 1e-3), 1.0) if ramp else 1.0)
