"""No scaling: the script's own learning rate, whatever the batch size."""

from __future__ import annotations

from coadapt.torch.rates._base import Progress


class Unscaled:
    """Leaves the rate as it is."""

    name = "none"
    order = 50
    steady = True

    def factor(self, progress: Progress) -> float:
        """See ``RateRule``."""
        return 1.0
