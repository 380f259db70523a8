"""Analytic time of a layer: PALEO (Qi et al., ICLR 2017), with a fitted or assumed efficiency of each kind.

    T = n o + c F / peak + m Y / bandwidth

F FLOPs and Y bytes of the step (``layer.step_work``), n kernels in sequence, o a constant per layer for launching it;
1/c and 1/m are the shares of the device's peaks that a kind of layer reaches. PALEO also adds reading, computing and
writing; we add the constant, without which sums over small layers come out two to three times too low.

For dense layers and convolutions o, c, m are fitted to the measurements of Justus et al. (see ``learned.shipped``) with
errors weighted relatively; for the other kinds they are assumptions, stated below, until this device was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from coadapt.model import Fact
from coadapt.model.hardware import Gpu
from coadapt.prediction._base import FloatArray
from coadapt.prediction.layers.layer import Kind, Layer, Work, step_work


class Efficiency(Fact, frozen=True):
    """Constant per kernel, and how many times longer than at the peaks computing and moving take."""

    overhead_s: float
    compute: float
    memory: float


#: Not measured: elementwise kernels reach most of the memory's bandwidth, gathers and small sequential products little.
ASSUMED: dict[Kind, Efficiency] = {
    "dense": Efficiency(overhead_s=5e-5, compute=2.0, memory=1.5),
    "convolution": Efficiency(overhead_s=5e-5, compute=2.0, memory=2.0),
    "pooling": Efficiency(overhead_s=3e-5, compute=1.0, memory=1.7),
    "recurrent": Efficiency(overhead_s=3e-5, compute=3.0, memory=1.5),
    "attention": Efficiency(overhead_s=8e-5, compute=2.5, memory=1.7),
    "normalisation": Efficiency(overhead_s=4e-5, compute=1.0, memory=1.7),
    "embedding": Efficiency(overhead_s=3e-5, compute=1.0, memory=3.0),
    "activation": Efficiency(overhead_s=2e-5, compute=1.0, memory=1.4),
    "other": Efficiency(overhead_s=3e-5, compute=1.5, memory=1.7),
}
#: Matrix units are rarely busy all the time: usable share of their peak, relative to that of ordinary units.
_MATRIX_UNITS = 0.4


def terms(work: Work, gpu: Gpu, precision: str = "fp32") -> FloatArray:
    """The three terms before their coefficients: one row per layer."""
    peak = gpu.peak_flops(precision)
    if peak > gpu.peak_flops("fp32"):
        peak = max(peak * _MATRIX_UNITS, gpu.peak_flops("fp32"))
    return np.column_stack([work.launches, work.flops / peak, work.moved_bytes / gpu.bandwidth_bytes_s])


def analytic(
    layers: Sequence[Layer],
    optimizers: Sequence[str],
    gpu: Gpu,
    efficiency: dict[Kind, Efficiency] | None = None,
    precision: str = "fp32",
) -> FloatArray:
    """Analytic seconds of each layer.

    Args:
        layers: The layers.
        optimizers: The optimizer of each layer.
        gpu: The device.
        efficiency: Efficiencies by kind of layer, instead of the assumed ones.
        precision: Number format.
    """
    known = {**ASSUMED, **(efficiency or {})}
    rows = terms(step_work(layers, optimizers, precision), gpu, precision)
    each = [known[layer.kind] for layer in layers]
    return np.asarray((rows * [(one.overhead_s, one.compute, one.memory) for one in each]).sum(axis=1))


def fit_efficiency(rows: FloatArray, seconds: FloatArray, prior: Efficiency | None = None) -> Efficiency:
    """Non-negative least squares of relative errors; ``prior`` counts as one measurement per coefficient."""
    system, target = rows / seconds[:, None], np.ones(len(seconds))
    if prior is not None:
        weak = np.diag(np.median(system, axis=0) + 1e-12)
        centre = (prior.overhead_s, prior.compute, prior.memory)
        system, target = np.vstack([system, weak]), np.append(target, weak @ centre)
    overhead, compute, memory = nnls(system, target)[0]
    # a term that no measurement needed still may not be free
    return Efficiency(overhead_s=max(float(overhead), 1e-9), compute=float(compute), memory=float(memory))
