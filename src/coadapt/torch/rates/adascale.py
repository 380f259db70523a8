"""AdaScale (Johnson et al., ICML 2020): the rate grows by what the step gains. For SGD.

    gain(scale) = (var + sqr) / (var / scale + sqr)

between 1 (no noise: a larger batch brings nothing) and scale (nothing but noise: linear scaling).
"""

from __future__ import annotations

from coadapt.prediction.gradient_noise import gain
from coadapt.torch.rates._base import Progress


class AdaScale:
    """Multiplies the rate by the gain of a step."""

    name = "adascale"
    order = 10
    steady = True

    def factor(self, progress: Progress) -> float:
        """See ``RateRule``. A step below M0 keeps the rate: only the last of a pass is one."""
        return gain(*progress.grad, progress.scale) if progress.scale > 1 else 1.0
