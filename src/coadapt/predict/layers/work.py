"""The work of one training step in a layer: FLOPs and bytes moved, as columns over many layers.

    forward only     F                     I + O + W
    training         3 F                   3 (I + O + W) + u W

F FLOPs, I and O input and output, W parameters, u what the optimizer's update moves per parameter: the backward
pass computes a gradient for the input and one for the parameters, each as much work as the forward pass.
Layers without a matrix product have one gradient only (2 F). A fused activation moves its output twice more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coadapt.predict._base import FloatArray
from coadapt.predict.layers.layer import OPTIMIZER_TRAFFIC, WIDTH_BYTES, Layer

_FP32_BYTES = 4


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
