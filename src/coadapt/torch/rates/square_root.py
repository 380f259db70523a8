"""Square root of the batch size: for Adam and its family, whose steps are already divided by the gradient's size."""

from __future__ import annotations

import math

from coadapt.torch.rates._base import Progress


class SquareRoot:
    """Multiplies the rate by the square root of scale."""

    name = "sqrt"
    order = 20
    steady = True

    def factor(self, progress: Progress) -> float:
        """See ``RateRule``."""
        return math.sqrt(max(progress.scale, 1.0))
