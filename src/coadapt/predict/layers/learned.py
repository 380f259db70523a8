"""Learned time of dense layers and convolutions: trees, or a network, on the logarithm of time over its roofline.

    log T = log(o + c F / peak + m Y / bandwidth) + f(features of layer and device)

After Justus et al. (IEEE Big Data 2018), whose network and measurements (250,000 layers, five GPUs, TensorFlow 1,
32-bit, Apache-2.0) this follows. f is either a sum of boosted trees (``trees``, the default) or a network of the
paper's shape (``feed_forward``). Where we deviate from the paper: a residual on the roofline, so that a faster device is
faster; features that say how well a kernel fits a device; and for a device that was *not* measured the average of
what the measured ones would do relative to their own rooflines, because neither extrapolates in a
device's figures (trees, one of five GPUs left out: 55% error that way). Errors of both, and of the paper's network
as published: ``benchmarks.prediction_layers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coadapt.predict._base import FloatArray
from coadapt.predict.hardware import Gpu, find_gpu
from coadapt.predict.layers import feed_forward, trees
from coadapt.predict.layers.features import device_features, matrix, shape_features
from coadapt.predict.layers.feed_forward import FeedForward
from coadapt.predict.layers.layer import Kind, Layer
from coadapt.predict.layers.roofline import Efficiency, terms
from coadapt.predict.layers.trees import Trees
from coadapt.predict.layers.work import step_work

LEARNED: tuple[Kind, ...] = ("convolution", "dense")
Learner = Literal["trees", "network"]
LEARNERS: tuple[Learner, ...] = ("trees", "network")


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned about one kind of layer."""

    efficiency: Efficiency
    regressor: Trees | FeedForward
    #: The devices whose layers were measured.
    gpus: tuple[str, ...]
    #: 10% and 90% quantiles of log(true / predicted) held out: on a measured device, and on one left out.
    interval: tuple[float, float]
    unseen_interval: tuple[float, float]
    #: Least and most FLOPs of a step in the measurements, as logarithms.
    flops_range: tuple[float, float]

    def log_roofline(
        self, layers: Sequence[Layer], optimizers: Sequence[str], gpu: Gpu, precision: str = "fp32"
    ) -> FloatArray:
        """Logarithm of the analytic time with the efficiency that was learned."""
        rows = terms(step_work(layers, optimizers, precision), gpu, precision)
        one = self.efficiency
        return np.asarray(np.log(rows @ [one.overhead_s, one.compute, one.memory]))

    def residuals(self, layers: Sequence[Layer], optimizers: Sequence[str]) -> FloatArray:
        """What was learned beyond the log roofline, for every layer (rows) on every measured device (columns)."""
        shape = shape_features(layers, optimizers)
        every = np.vstack([self._inputs(shape, find_gpu(name)) for name in self.gpus])
        return self.regressor.predict(every).reshape(len(self.gpus), len(layers)).T

    def residual(self, layers: Sequence[Layer], optimizers: Sequence[str], gpu: Gpu) -> FloatArray:
        """The same on one measured device."""
        return self.regressor.predict(self._inputs(shape_features(layers, optimizers), gpu))

    def _inputs(self, shape: dict[str, FloatArray], gpu: Gpu) -> FloatArray:
        return matrix({**shape, **device_features(shape, gpu)}, self.regressor.names)


def to_arrays(learned: Learned) -> dict[str, npt.NDArray[Any]]:
    """For ``numpy.savez_compressed``."""
    one = learned.efficiency
    regressor = learned.regressor
    packed = trees.pack(regressor) if isinstance(regressor, Trees) else feed_forward.pack(regressor)
    return {
        **packed,
        "efficiency": np.array([one.overhead_s, one.compute, one.memory]),
        "gpus": np.array(learned.gpus),
        "intervals": np.array([learned.interval, learned.unseen_interval]),
        "flops_range": np.array(learned.flops_range),
    }


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Learned:
    """The inverse of ``to_arrays``."""
    overhead, compute, memory = arrays["efficiency"].tolist()
    (low, high), (unseen_low, unseen_high) = arrays["intervals"].tolist()
    least, most = arrays["flops_range"].tolist()
    return Learned(
        efficiency=Efficiency(overhead_s=overhead, compute=compute, memory=memory),
        regressor=trees.unpack(arrays) if "leaf" in arrays else feed_forward.unpack(arrays),
        gpus=tuple(str(name) for name in arrays["gpus"]),
        interval=(low, high),
        unseen_interval=(unseen_low, unseen_high),
        flops_range=(least, most),
    )


@cache
def shipped(kind: Kind, learner: Learner = "trees") -> Learned | None:
    """What this package ships for a kind of layer; None where nothing was measured."""
    if kind not in LEARNED:
        return None
    with files("coadapt.predict.layers").joinpath("data", file_name(kind, learner)).open("rb") as stream:
        return from_arrays(dict(np.load(stream, allow_pickle=False)))


def file_name(kind: str, learner: Learner) -> str:
    """Where it is shipped."""
    return f"{kind}.npz" if learner == "trees" else f"{kind}-{learner}.npz"
