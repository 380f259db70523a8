"""A whole model: batch = sum of its layers and their exchange of gradients, pass = batches x batch time.

The intervals of layers add up neither independently (one device, one library: they err together) nor wholly
together; half of the variance is taken as shared, so that the interval of a deep model does not shrink to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.model.hardware import Gpu
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.communication import Network, exposed, sync_time
from coadapt.prediction.layers.layer import Layer, Measured
from coadapt.prediction.layers.layer_time import LayerTimes, predict_layers
from coadapt.prediction.layers.learned import Learner

_FP32_BYTES = 4
_SHARED = 0.5
#: Links reach 60 to 100% of what their datasheets say, and rarely all of it.
_SYNC_LOW, _SYNC_HIGH = 0.8, 2.0


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
        raise InputError("the model has no layers; nothing to predict")
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
