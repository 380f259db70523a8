"""Time of every layer of a model on a device, each with its interval and the method it came from.

- ``learned``: a dense layer or convolution on a device whose layers were measured;
- ``projected``: the same on another device, from its datasheet: wider;
- ``analytic``: other kinds, the CPU, and whatever lies outside what was measured: wider still;
- ``calibrated``: any of these, corrected by layers measured on this very device (``coadapt profile layers``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coadapt.predict._base import FloatArray
from coadapt.predict.hardware import CPU, Gpu
from coadapt.predict.layers import correction
from coadapt.predict.layers.layer import KINDS, Kind, Layer, Measured
from coadapt.predict.layers.learned import Learned, Learner, shipped
from coadapt.predict.layers.roofline import ASSUMED, Efficiency, analytic, fit_efficiency, terms
from coadapt.predict.layers.work import step_work

#: Half-width of the log interval of an analytic time: a factor of three, as of devices never measured.
_ANALYTIC_WIDTH = 1.3
#: Added per e-fold of FLOPs beyond the measured range, and for a precision other than the measured one.
_BEYOND_WIDTH, _PRECISION_WIDTH = 0.1, 0.35
#: Added where device *and* library differ from those measured (TensorFlow 1 on GPUs of 2013 to 2017): what libraries
#: gained since is of this order, and nothing here has measured it.
_OTHER_STACK_WIDTH = 0.5
#: Fewer measured layers of a kind than this say nothing about the others.
MIN_MEASURED = 5


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds per layer; ``low`` and ``high`` hold the true time in 80% of all cases."""

    seconds: FloatArray
    low: FloatArray
    high: FloatArray
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Base:
    """Logarithms of time and interval of layers of one kind, and their likeness to the measured devices."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    likeness: FloatArray
    method: str


def predict_layers(
    layers: Sequence[Layer],
    gpu: Gpu,
    *,
    optimizer: str | Sequence[str] = "sgd",
    precision: str = "fp32",
    measured: Sequence[Measured] = (),
    learner: Learner = "trees",
    learned: Mapping[Kind, Learned] | None = None,
) -> LayerTimes:
    """One step of every layer: forward only with optimizer "none", else forward, backward and update.

    ``optimizer``: of all layers, or one each; ``learner``: which of the shipped ones; ``learned``: instead of those.
    """
    optimizers = [optimizer] * len(layers) if isinstance(optimizer, str) else list(optimizer)
    value, low, high = (np.zeros(len(layers)) for _ in range(3))
    methods = [""] * len(layers)
    for kind, grouped in ((kind, grouped) for kind in KINDS for grouped in (False, True)):
        # grouped convolutions were never measured; among themselves they are analytic
        at = [i for i, each in enumerate(layers) if each.kind == kind and (each.groups > 1) == grouped]
        if not at:
            continue
        chosen, by = [layers[i] for i in at], [optimizers[i] for i in at]
        from_data = None
        if gpu is not CPU and not grouped:
            from_data = shipped(kind, learner) if learned is None else learned.get(kind)
        known = [
            each
            for each in measured
            if each.layer.kind == kind and (from_data is None or each.layer.groups == 1)
        ]
        times = _one_kind(kind, chosen, by, gpu, precision, known, from_data)
        value[at], low[at], high[at] = times.value, times.low, times.high
        for i in at:
            methods[i] = times.method
    return LayerTimes(np.exp(value), np.exp(low), np.exp(high), tuple(methods))


def _one_kind(
    kind: Kind,
    layers: Sequence[Layer],
    optimizers: Sequence[str],
    gpu: Gpu,
    precision: str,
    measured: Sequence[Measured],
    learned: Learned | None,
) -> _Base:
    efficiency = ASSUMED[kind]
    if len(measured) < MIN_MEASURED:
        return _base(layers, optimizers, gpu, precision, learned, efficiency)
    seen, seen_by = [each.layer for each in measured], [each.optimizer for each in measured]
    seconds = np.array([each.seconds for each in measured])
    if learned is None:
        efficiency = fit_efficiency(terms(step_work(seen, seen_by), gpu), seconds, efficiency)
    before = _base(seen, seen_by, gpu, "fp32", learned, efficiency)
    fitted = correction.fit(
        correction.coordinates(seen, seen_by), before.likeness, np.log(seconds) - before.value
    )
    base = _base(layers, optimizers, gpu, precision, learned, efficiency)
    shift, width = fitted.predict(correction.coordinates(layers, optimizers), base.likeness)
    width = width + (_PRECISION_WIDTH if precision != "fp32" else 0.0)
    value = base.value + shift
    return _Base(value, value - width, value + width, base.likeness, "calibrated")


def _base(
    layers: Sequence[Layer],
    optimizers: Sequence[str],
    gpu: Gpu,
    precision: str,
    learned: Learned | None,
    efficiency: Efficiency,
) -> _Base:
    if learned is None:
        kind = layers[0].kind
        value = np.log(analytic(layers, optimizers, gpu, {kind: efficiency}, precision))
        none = np.zeros((len(layers), 1))
        return _Base(value, value - _ANALYTIC_WIDTH, value + _ANALYTIC_WIDTH, none, "analytic")
    value = learned.log_roofline(layers, optimizers, gpu, precision)
    every = learned.residuals(layers, optimizers)
    likeness = every - every.mean(axis=1, keepdims=True)
    seen = gpu.name in learned.gpus and precision == "fp32"
    value = value + (
        every[:, learned.gpus.index(gpu.name)] if gpu.name in learned.gpus else every.mean(axis=1)
    )
    low, high = learned.interval if seen else learned.unseen_interval
    flops = np.log(np.maximum(step_work(layers, optimizers).flops, 1))
    least, most = learned.flops_range
    wider = _BEYOND_WIDTH * (np.maximum(flops - most, 0) + np.maximum(least - flops, 0))
    wider = wider + (_PRECISION_WIDTH if precision != "fp32" else 0.0) + (0.0 if seen else _OTHER_STACK_WIDTH)
    method = "learned" if seen else "projected"
    return _Base(value, value + low - wider, value + high + wider, likeness, method)
