"""A whole model: batch = sum of its layers and their exchange of gradients, pass = batches x batch time.

The intervals of layers add up neither independently (one device, one library: they err together) nor wholly
together; half of the variance is assumed to be shared, so that the interval of a deep model does not shrink to nothing.

**Peak memory**, and the largest batch that fits:

    peak = W + S + max over layers i of (A_i + G_i + t_i)

W parameters, S the optimizer's state, A_i everything saved for the backward pass up to layer i, G_i gradients of
the parameters after it (the backward pass frees the one while it makes the other), t_i what the gradient of
layer i itself needs: the gradients of its output and its input. Activations grow with the batch, the rest does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.model.hardware import CPU, Gpu
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.communication import Network, exposed, sync_time
from coadapt.prediction.layers.layer import OPTIMIZER_STATE, WIDTH_BYTES, Layer, Measured, column
from coadapt.prediction.layers.layer_time import LayerTimes, predict_layers
from coadapt.prediction.layers.learned import Learner

_FP32_BYTES = 4
_SHARED = 0.5
#: Links reach 60 to 100% of what their datasheets say, and rarely all of it.
_SYNC_LOW, _SYNC_HIGH = 0.8, 2.0
#: A CUDA context, its kernels and the libraries' workspaces; depends on driver and version.
_CONTEXT_BYTES = 600e6
#: Allocators round up and fragment: from what is asked for to what is taken.
_LOW, _HIGH = 0.95, 1.2


class StepPrediction(Fact, frozen=True):
    """One optimizer step of a data-parallel job."""

    step_s: Interval
    compute_s: Interval
    #: One exchange of gradients, and the part of it that computing does not hide.
    sync_s: Interval
    exposed_s: float
    #: Share of the step spent waiting for gradients.
    communication_share: float
    #: Seconds per kind of layer.
    by_kind: dict[str, float]
    #: Layers by the method their time came from.
    methods: dict[str, int]


def predict_step(
    layers: Sequence[Layer],
    parameters: int,
    gpu: Gpu,
    network: Network,
    *,
    replicas: int = 1,
    optimizer: str = "sgd",
    precision: str = "fp32",
    sync: str = "ring",
    overlap: float = 0.7,
    measured: Sequence[Measured] = (),
    learner: Learner = "trees",
) -> StepPrediction:
    """Predict one optimizer step of a data-parallel job.

    Args:
        layers: Layers of the model, traced with the batch of one replica.
        parameters: Number of trained parameters.
        gpu: The device of every replica.
        network: Links between the replicas.
        replicas: Number of replicas.
        optimizer: Name of the optimizer; "none": forward only.
        precision: Number format, such as "fp32".
        sync: Algorithm that exchanges gradients (``communication.sync_time``).
        overlap: Share of the backward pass that can hide communication, 0 to 1.
        measured: Layers measured on this device.
        learner: Which of the shipped learned predictors to use.
    """
    if not layers:
        raise InputError("the model has no layers, so there is nothing to predict")
    times = predict_layers(
        layers, gpu, optimizer=optimizer, precision=precision, measured=measured, learner=learner
    )
    compute = total(times)
    sync_s = 0.0
    if optimizer != "none":
        sync_s = sync_time(sync, parameters * _FP32_BYTES, replicas, network)
    sync_range = Interval(value=sync_s, low=sync_s * _SYNC_LOW, high=sync_s * _SYNC_HIGH)
    waits = exposed(sync_s, compute.value, overlap)
    step = compute.value + waits
    by_kind: dict[str, float] = {}
    for layer, seconds in zip(layers, times.seconds.tolist(), strict=True):
        by_kind[layer.kind] = by_kind.get(layer.kind, 0.0) + seconds
    return StepPrediction(
        step_s=Interval(
            value=step,
            low=compute.low + exposed(sync_range.low, compute.low, overlap),
            high=compute.upper + exposed(sync_range.upper, compute.upper, overlap),
        ),
        compute_s=compute,
        sync_s=sync_range,
        exposed_s=waits,
        communication_share=waits / step,
        by_kind=dict(sorted(by_kind.items(), key=lambda item: -item[1])),
        methods={name: times.methods.count(name) for name in sorted(set(times.methods))},
    )


def total(times: LayerTimes) -> Interval:
    """The sum over layers with its interval."""
    value = float(times.seconds.sum())
    below, above = (_combined(np.abs(side - times.seconds)) for side in (times.low, times.high))
    # every layer's lower end is above zero, so the sum's is too
    return Interval(value=value, low=value - below, high=value + above)


def _combined(widths: FloatArray) -> float:
    together, apart = float(widths.sum()) ** 2, float((widths**2).sum())
    return math.sqrt(_SHARED * together + (1 - _SHARED) * apart)


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
