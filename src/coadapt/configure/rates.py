"""The learning rate at another batch size, by rule; S is the batch size over the smallest one.

linear    S           SGD (Goyal et al. 2017)
sqrt      sqrt(S)     Adam and its family (Malladi et al. 2022)
adascale  S x work    SGD (Johnson et al. 2020): as much as a step of this batch brings forward. Its gain (phi + M0)/(phi/S + M0) is S times
          the statistical efficiency, here over the whole run: epochs of work over the passes they take
none      1
"""

from __future__ import annotations

import math

import numpy as np

from coadapt.configure.outlook import Forecast
from coadapt.errors import UnknownNameError

RULES = ("linear", "sqrt", "adascale", "none")


def rate_factor(rule: str, scale: float, efficiency: float = 1.0) -> float:
    """What the learning rate is multiplied with at ``scale`` times the smallest batch."""
    factors = {
        "linear": scale,
        "sqrt": math.sqrt(scale),
        "adascale": max(scale * efficiency, 1.0),
        "none": 1.0,
    }
    if rule not in factors:
        raise UnknownNameError("learning-rate rule", rule, factors)
    return factors[rule]


def efficiencies(forecast: Forecast, batches: set[int], epochs: float) -> dict[int, float]:
    """Useful share of the examples by batch size, over a run of so many epochs of work."""
    sizes = np.array(sorted(batches), dtype=np.float64)
    passes = forecast.passes_for(epochs, sizes)
    # the smallest batch defines what a pass brings
    shares = np.clip(passes[0] / passes, 0.0, 1.0)
    return {int(size): float(share) for size, share in zip(sizes, shares, strict=True)}
