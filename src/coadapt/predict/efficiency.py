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
from typing import overload

from coadapt.predict._base import FloatArray

#: (grad_sqr, grad_var) before the first report: larger batches bring nothing.
UNKNOWN = (0.0, 0.0)


def noise_scale(grad_sqr: float, grad_var: float, initial_batch: float) -> float:
    """Gradient noise scale phi in examples; infinite where the gradient is nothing but noise."""
    sqr, var = max(grad_sqr, 0.0), max(grad_var, 0.0)
    if var == 0.0:
        return 0.0
    return initial_batch * var / sqr if sqr > 0 else math.inf


@overload
def efficiency(grad_sqr: float, grad_var: float, scale: float) -> float: ...
@overload
def efficiency(grad_sqr: float, grad_var: float, scale: FloatArray) -> FloatArray: ...
def efficiency(grad_sqr: float, grad_var: float, scale: float | FloatArray) -> float | FloatArray:
    """Useful share of each example at ``scale`` = batch / M0; a number, or an array of them."""
    sqr, var = max(grad_sqr, 0.0), max(grad_var, 0.0)
    total = var + sqr
    if total == 0.0:
        return 1.0 / scale
    # this form, not gain / scale: it cannot exceed 1 by rounding
    return total / (var + sqr * scale)


@overload
def gain(grad_sqr: float, grad_var: float, scale: float) -> float: ...
@overload
def gain(grad_sqr: float, grad_var: float, scale: FloatArray) -> FloatArray: ...
def gain(grad_sqr: float, grad_var: float, scale: float | FloatArray) -> float | FloatArray:
    """Progress of one step at ``scale`` = batch / M0, in steps at the reference batch size M0."""
    sqr, var = max(grad_sqr, 0.0), max(grad_var, 0.0)
    total = var + sqr
    if total == 0.0:
        return scale * 0.0 + 1.0
    return total / (var / scale + sqr)
