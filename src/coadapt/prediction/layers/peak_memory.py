"""Peak memory of a training step, and the largest batch that fits.

    peak = W + S + max over layers i of (A_i + G_i + t_i)

W parameters, S the optimizer's state, A_i everything saved for the backward pass up to layer i, G_i gradients of
the parameters after it (the backward pass frees the one while it makes the other), t_i what the gradient of
layer i itself needs: the gradients of its output and its input. Activations grow with the batch, the rest does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.model import Fact
from coadapt.model.hardware import CPU, Gpu
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.layers.layer import OPTIMIZER_STATE, WIDTH_BYTES, Layer, column

_FP32_BYTES = 4
#: A CUDA context, its kernels and the libraries' workspaces; depends on driver and version.
_CONTEXT_BYTES = 600e6
#: Allocators round up and fragment: from what is asked for to what is taken.
_LOW, _HIGH = 0.95, 1.2


class Memory(Fact, frozen=True):
    """Bytes on one replica's device."""

    peak: Interval
    #: Parameters, gradients and the optimizer's state.
    fixed_bytes: float
    #: Saved for the backward pass, and the gradients in flight.
    activation_bytes: float
    #: None where nothing fits, or where the device's memory is not known.
    largest_batch: int | None


def memory(
    layers: Sequence[Layer],
    parameters: int,
    input_bytes: float,
    batch: int,
    gpu: Gpu,
    *,
    optimizer: str = "sgd",
    precision: str = "fp32",
) -> Memory:
    """Peak memory of one training step on one device.

    Args:
        layers: Layers of the model, traced with ``batch``.
        parameters: Number of trained parameters.
        input_bytes: Bytes of one batch of input.
        batch: Examples in the batch.
        gpu: The device.
        optimizer: Name of the optimizer; "none": forward only.
        precision: Number format.
    """
    training = optimizer != "none"
    width = WIDTH_BYTES[precision] / _FP32_BYTES
    copies = WIDTH_BYTES[precision] if precision in ("bf16", "fp16") else 0
    kept: float = parameters * (_FP32_BYTES * (1 + OPTIMIZER_STATE[optimizer]) + copies)
    kept += 0.0 if gpu is CPU else _CONTEXT_BYTES
    moments = (column(layers, "input_bytes") + column(layers, "output_bytes")) * width + input_bytes
    gradients = np.zeros(len(layers))
    if training:
        moments += np.cumsum(column(layers, "saved_bytes")) * width
        gradients = np.cumsum(column(layers, "parameters")[::-1])[::-1] * _FP32_BYTES
    # after the last layer all gradients are there and nothing else
    moments, gradients = np.append(moments, 0.0), np.append(gradients, parameters * _FP32_BYTES * training)
    top = int(np.argmax(moments + gradients))
    value = kept + float(moments[top] + gradients[top])
    return Memory(
        peak=Interval(value=value, low=value * _LOW, high=value * _HIGH),
        fixed_bytes=kept + float(gradients[top]),
        activation_bytes=float(moments[top]),
        largest_batch=_largest(gpu, kept + gradients, moments / batch),
    )


def _largest(gpu: Gpu, fixed_bytes: FloatArray, example_bytes: FloatArray) -> int | None:
    """With the upper end of the interval, so that it does fit; at every moment of the step."""
    if gpu is CPU:
        return None
    room = gpu.memory_bytes / _HIGH - fixed_bytes
    grows = example_bytes > 0
    most = int(np.floor(room[grows] / example_bytes[grows]).min()) if grows.any() and room.min() > 0 else 0
    return most if most >= 1 else None
