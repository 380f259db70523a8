"""One layer of a model as it is applied to one batch: its shape, its work (FLOPs and bytes) and its measured time.

All figures of a ``Layer`` are of the *forward* pass of a whole (per-replica) batch in 32-bit numbers. FLOPs count two per
multiply-accumulate. ``step_work`` computes the work of one training step, as columns over many layers:

    forward only     F                     I + O + W
    training         3 F                   3 (I + O + W) + u W

F FLOPs, I and O input and output, W parameters, u what the optimizer's update moves per parameter: the backward
pass computes a gradient for the input and one for the parameters, each as much work as the forward pass.
Layers without a matrix product have one gradient only (2 F). A fused activation moves its output twice more.

**Analytic time** of a layer, by the roofline of PALEO (Qi et al., ICLR 2017), with a fitted or assumed efficiency of each kind:

    T = n o + c F / peak + m Y / bandwidth

F FLOPs and Y bytes of the step (``step_work``), n kernels in sequence, o a constant per layer for launching it;
1/c and 1/m are the shares of the device's peaks that a kind of layer reaches. PALEO also adds reading, computing and
writing; we add the constant, without which sums over small layers come out two to three times too low.

For dense layers and convolutions o, c, m are fitted to the measurements of Justus et al. (see ``learned.shipped``) with
errors weighted relatively; for the other kinds they are assumptions, stated below, until this device was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.optimize import nnls

from coadapt.errors import UnknownNameError
from coadapt.model import Fact
from coadapt.model.hardware import Gpu
from coadapt.prediction._base import FloatArray

Kind = Literal[
    "dense",
    "convolution",
    "pooling",
    "recurrent",
    "attention",
    "normalisation",
    "embedding",
    "activation",
    "other",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Optimizers, and the numbers per parameter that they keep and that their update moves. "none": forward only.
OPTIMIZER_STATE = {
    "none": 0,
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "adadelta": 2,
}
OPTIMIZER_TRAFFIC = {
    "none": 0,
    "sgd": 1,
    "momentum": 2,
    "adagrad": 2,
    "rmsprop": 2,
    "adam": 3,
    "adamw": 3,
    "adadelta": 4,
}
#: Bytes of a number by precision.
WIDTH_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_FP32_BYTES = 4
#: Matrix units are rarely busy all the time: usable share of their peak, relative to that of ordinary units.
_MATRIX_UNITS = 0.4


class Layer(Fact, frozen=True):
    """A layer applied to a batch."""

    name: str
    kind: Kind
    #: Examples in the batch.
    batch: int
    flops: float
    input_bytes: float
    output_bytes: float
    parameters: int = 0
    #: Kept from the forward pass until the backward pass, parameters not counted.
    saved_bytes: float = 0.0
    #: The matrix product inside: rows x depth times depth x columns (0 where there is none).
    rows: float = 0.0
    columns: float = 0.0
    depth: float = 0.0
    # convolutions and pooling
    size: float = 0.0
    out_size: float = 0.0
    kernel: float = 0.0
    stride: float = 1.0
    groups: int = 1
    channels_in: float = 0.0
    channels_out: float = 0.0
    same_padding: bool = False
    bias: bool = False
    #: Applied to the output inside the layer's own kernel: none, relu, tanh, sigmoid.
    activation: str = "none"
    #: Steps that follow one another (recurrent layers): each is launched apart.
    steps: int = 1


class Measured(Fact, frozen=True):
    """A layer's measured time: forward only (optimizer "none"), or forward, backward and update."""

    layer: Layer
    optimizer: str
    seconds: float


def check_optimizer(name: str) -> str:
    """Return the name of a known optimizer; raises an UnknownNameError for another."""
    if name not in OPTIMIZER_STATE:
        raise UnknownNameError("optimizer", name, OPTIMIZER_STATE)
    return name


def check_precision(name: str) -> str:
    """Return the name of a known precision; raises an UnknownNameError for another."""
    if name not in WIDTH_BYTES:
        raise UnknownNameError("precision", name, WIDTH_BYTES)
    return name


class Work(NamedTuple):
    """Per layer: FLOPs, bytes, and how many kernels start one after the other (relative to one layer)."""

    flops: FloatArray
    moved_bytes: FloatArray
    launches: FloatArray


def column(layers: Sequence[Layer], name: str) -> FloatArray:
    """One field of every layer."""
    return np.array([getattr(layer, name) for layer in layers], dtype=float)


def step_work(layers: Sequence[Layer], optimizers: Sequence[str], precision: str = "fp32") -> Work:
    """Work of one step, forward only where the optimizer is "none"."""
    forward = np.array([name == "none" for name in optimizers])
    product = column(layers, "depth") > 0
    passes = np.where(forward, 1.0, np.where(product, 3.0, 2.0))
    out = column(layers, "output_bytes")
    parameter_bytes = _FP32_BYTES * column(layers, "parameters")
    fused = np.array([layer.activation != "none" for layer in layers])
    moved = passes * (column(layers, "input_bytes") + out + parameter_bytes)
    moved += np.where(fused, 2 * out * np.where(forward, 1.0, 2.0), 0.0)
    moved *= WIDTH_BYTES[precision] / _FP32_BYTES
    # the update works on 32-bit master copies whatever the precision
    moved += np.array([OPTIMIZER_TRAFFIC[name] for name in optimizers]) * parameter_bytes
    return Work(passes * column(layers, "flops"), moved, column(layers, "steps"))


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
