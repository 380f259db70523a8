"""Statistical efficiency of a batch size: Pollux (OSDI 2021), section 3.1, after AdaScale and McCandlish et al.

    phi    = M0 var / sqr                                gradient noise scale, in examples
    gain   = (var + sqr) / (var / scale + sqr)           progress of one step at M, in steps at M0; scale = M / M0
    efficiency = gain / scale = (phi + M0) / (phi + M)   useful share of the examples, (0, 1] for M >= M0

with sqr the squared norm of the true gradient and var the variance of its estimate at M0. Both are
estimates that noise may push below zero; they are taken as zero then. Where both vanish nothing is
known about the noise and a step counts as one step (gain 1), whatever its batch size.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coadapt.model import Fact
from coadapt.predict._base import FloatArray


class GradientStats(Fact, frozen=True):
    """Squared norm and variance of the gradient at the reference batch size."""

    sqr: float
    var: float

    @property
    def known(self) -> bool:
        """False if neither is positive: nothing can be said about larger batches."""
        return self.sqr > 0 or self.var > 0


#: Before the first report: larger batches bring nothing.
NO_GRADIENT = GradientStats(sqr=0.0, var=0.0)


def noise_scale(grad: GradientStats, initial_batch: float) -> float:
    """Gradient noise scale phi in examples; infinite where the gradient is nothing but noise."""
    if not grad.known:
        return 0.0
    return initial_batch * max(grad.var, 0.0) / grad.sqr if grad.sqr > 0 else math.inf


def efficiency(grad: GradientStats, initial_batch: float, batch: npt.ArrayLike) -> FloatArray:
    """Useful share of each example at total batch size ``batch``; arguments broadcast."""
    scale = np.asarray(batch, dtype=np.float64) / initial_batch
    if not grad.known:
        return np.asarray(1.0 / scale)
    sqr, var = max(grad.sqr, 0.0), max(grad.var, 0.0)
    # this form, not gain / scale: it cannot exceed 1 by rounding
    return np.asarray((var + sqr) / (var + sqr * scale))


def gain(grad: GradientStats, initial_batch: float, batch: npt.ArrayLike) -> FloatArray:
    """Progress of one step at ``batch``, in steps at the reference batch size."""
    scale = np.asarray(batch, dtype=np.float64) / initial_batch
    return np.asarray(efficiency(grad, initial_batch, batch) * scale)
