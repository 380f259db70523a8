"""Linear scaling with a gradual warm-up (Goyal et al., 2017): from the rate of M0 to scale x it over some epochs."""

from __future__ import annotations

from coadapt.errors import InputError
from coadapt.torch.rates._base import Progress


class Linear:
    """``warmup`` in epochs of work."""

    name = "linear"
    order = 30

    def __init__(self, warmup: float = 5.0) -> None:
        if not warmup >= 0:
            raise InputError(f"warmup of {warmup} epochs: it must be 0 or more")
        self.warmup = warmup

    def factor(self, progress: Progress) -> float:
        """See ``RateRule``."""
        scale = max(progress.scale, 1.0)
        share = min(progress.epoch / self.warmup, 1.0) if self.warmup else 1.0
        return 1.0 + (scale - 1.0) * share
