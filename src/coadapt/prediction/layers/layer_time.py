"""Time of every layer of a model on a device, corrected by measured layers, each with its interval and method.

- ``learned``: a dense layer or convolution on a device whose layers were measured;
- ``projected``: the same on another device, from its datasheet: wider;
- ``analytic``: other kinds, the CPU, and layers outside the range of the measurements: wider still;
- ``calibrated``: any of these, corrected by layers measured on this very device (``coadapt profile layers``).

The correction is a Gaussian-process regression on log(measured / predicted) of the measured layers (``Correction``):

    k(a, b) = s0^2 + s1^2 r_a . r_b + c^2 (s2^2 z_a . z_b + s3^2 exp(-|z_a - z_b|^2 / 2 l^2)),    noise n

z are scaled features of the layer; r says how the devices measured before differ from their mean on it, so that
the term s1 finds which of them the new device resembles. The scales s were chosen on the validation part of the
measured layers, one GPU left out in turn; c, how far layers may deviate from the prediction, by leave-one-out errors
(1 suffices around learned times, a roofline on a device that was never measured needs more). Intervals come from the
leave-one-out errors of the measured layers, which the inverse of the kernel matrix gives at no cost, in units of the
process' own standard deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coadapt.model.hardware import CPU, Gpu
from coadapt.prediction._base import COVERAGE, FloatArray
from coadapt.prediction.layers.layer import (
    ASSUMED,
    KINDS,
    Efficiency,
    Kind,
    Layer,
    Measured,
    analytic,
    column,
    fit_efficiency,
    step_work,
    terms,
)
from coadapt.prediction.layers.learned import Learned, Learner, shipped

_CONSTANT, _LIKENESS, _SLOPE, _LOCAL, _LENGTH, _NOISE = 0.3, 0.5, 0.03, 0.15, 2.0, 0.1
_STRAY = (1.0, 2.0, 4.0, 8.0)
#: Standardised half-width before the errors say otherwise, and how many errors that is worth.
_PRIOR_QUANTILE, _PRIOR_ERRORS = 1.28, 5


@dataclass(frozen=True, slots=True)
class Correction:
    """The fitted Gaussian process that corrects predicted times."""

    z: FloatArray
    likeness: FloatArray
    median: float
    weights: FloatArray
    inverse: FloatArray
    quantile: float
    stray: float

    def predict(self, z: FloatArray, likeness: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Correction of the logarithm of the predicted time, and the half-width of its 80% interval."""
        cross = _kernel(likeness, self.likeness, z, self.z, self.stray)
        variance = _diagonal(likeness, z, self.stray) - np.einsum("ij,jk,ik->i", cross, self.inverse, cross)
        spread = np.sqrt(np.maximum(variance, 0.0) + _NOISE**2)
        return self.median + cross @ self.weights, self.quantile * spread


def fit(z: FloatArray, likeness: FloatArray, residual: FloatArray) -> Correction:
    """Fit the correction to ``residual``, log(measured / predicted) of the measured layers."""
    median = float(np.median(residual))
    tried = [_solve(z, likeness, residual - median, stray) for stray in _STRAY]
    # the mean absolute error left out, as what is asked of predictions
    left_out = [float(np.abs(weights / np.diag(inverse)).mean()) for weights, inverse in tried]
    best = int(np.argmin(left_out))
    weights, inverse = tried[best]
    standardised = np.abs(weights / np.sqrt(np.diag(inverse)))
    share = len(z) / (len(z) + _PRIOR_ERRORS)
    quantile = share * float(np.quantile(standardised, COVERAGE)) + (1 - share) * _PRIOR_QUANTILE
    return Correction(
        z=z,
        likeness=likeness,
        median=median,
        weights=weights,
        inverse=inverse,
        quantile=quantile,
        stray=_STRAY[best],
    )


def _solve(
    z: FloatArray, likeness: FloatArray, residual: FloatArray, stray: float
) -> tuple[FloatArray, FloatArray]:
    inverse = np.linalg.inv(_kernel(likeness, likeness, z, z, stray) + _NOISE**2 * np.eye(len(z)))
    return inverse @ residual, np.asarray(inverse, dtype=float)


def coordinates(layers: Sequence[Layer], optimizers: Sequence[str]) -> FloatArray:
    """Coordinates z of layers, in which the distance says how similar two are; a distance of 2 is still near."""
    work = step_work(layers, optimizers)
    flops, moved = np.log(np.maximum(work.flops, 1)), np.log(np.maximum(work.moved_bytes, 1))
    training = np.array([name != "none" for name in optimizers], dtype=float)
    return np.column_stack(
        [
            training,
            np.log(column(layers, "batch")) - 3,
            (flops - 20) / 3,
            (moved - 17) / 2,
            (flops - moved - 3) / 1.5,
            (np.log1p(column(layers, "channels_in")) - 4) / 1.5,
            (np.log1p(column(layers, "channels_out")) - 4) / 1.5,
            column(layers, "kernel") / 2 - 2,
            column(layers, "stride") - 1,
            column(layers, "same_padding"),
            np.log1p(column(layers, "out_size")) - 3,
            np.log(column(layers, "steps")),
            np.log(column(layers, "groups")) / 2,
            _gates(layers),
        ]
    )


def _gates(layers: Sequence[Layer]) -> FloatArray:
    """Tells LSTM (4), GRU (3) and plain cells (1) apart: libraries treat them quite differently."""
    gates = column(layers, "columns") / np.maximum(column(layers, "channels_out"), 1)
    recurrent = np.array([layer.kind == "recurrent" for layer in layers])
    return np.where(recurrent, 3 * (gates - 3.5), 0.0)


def _kernel(like_a: FloatArray, like_b: FloatArray, a: FloatArray, b: FloatArray, stray: float) -> FloatArray:
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
    near = _LOCAL**2 * np.exp(-np.maximum(squares, 0) / (2 * _LENGTH**2))
    layer = stray**2 * (_SLOPE**2 * a @ b.T + near)
    return np.asarray(_CONSTANT**2 + _LIKENESS**2 * like_a @ like_b.T + layer)


def _diagonal(likeness: FloatArray, z: FloatArray, stray: float) -> FloatArray:
    layer = stray**2 * (_LOCAL**2 + _SLOPE**2 * (z**2).sum(1))
    return np.asarray(_CONSTANT**2 + _LIKENESS**2 * (likeness**2).sum(1) + layer)


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
    """Time of one step of every layer: forward only with optimizer "none", else forward, backward and update.

    Args:
        layers: The layers, as traced with one batch.
        gpu: The device.
        optimizer: One optimizer for all layers, or a sequence with one per layer.
        precision: Number format, such as "fp32".
        measured: Layers measured on this device, which correct the predictions.
        learner: Which of the shipped learned predictors to use.
        learned: Learned predictors by kind of layer, instead of the shipped ones.
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
    fitted = fit(coordinates(seen, seen_by), before.likeness, np.log(seconds) - before.value)
    base = _base(layers, optimizers, gpu, precision, learned, efficiency)
    shift, width = fitted.predict(coordinates(layers, optimizers), base.likeness)
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
