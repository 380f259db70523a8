"""What a few measured layers say about all others: Gaussian-process regression on log(measured / predicted).

    k(a, b) = s0^2 + s1^2 r_a . r_b + c^2 (s2^2 z_a . z_b + s3^2 exp(-|z_a - z_b|^2 / 2 l^2)),    noise n

z are scaled features of the layer; r says how the devices measured before differ from their mean on it, so that
the term s1 finds which of them the new device resembles. The scales s were chosen on the validation part of the
measured layers, one GPU left out in turn; c, how far layers may stray from the prediction, by leave-one-out errors
(1 suffices around learned times, a roofline on a device nobody has measured needs more). Intervals come from the leave-one-out errors of the measured layers,
which the inverse of the kernel matrix gives at no cost, in units of the process' own standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coadapt.predict._base import COVERAGE, FloatArray
from coadapt.predict.layers.layer import Layer
from coadapt.predict.layers.work import column, step_work

_CONSTANT, _LIKENESS, _SLOPE, _LOCAL, _LENGTH, _NOISE = 0.3, 0.5, 0.03, 0.15, 2.0, 0.1
_STRAY = (1.0, 2.0, 4.0, 8.0)
#: Standardised half-width before the errors say otherwise, and how many errors that is worth.
_PRIOR_QUANTILE, _PRIOR_ERRORS = 1.28, 5


@dataclass(frozen=True, slots=True)
class Correction:
    """A fitted process."""

    z: FloatArray
    likeness: FloatArray
    median: float
    weights: FloatArray
    inverse: FloatArray
    quantile: float
    stray: float

    def predict(self, z: FloatArray, likeness: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What to add to the logarithm of the predicted time, and the half-width of its 80% interval."""
        cross = _kernel(likeness, self.likeness, z, self.z, self.stray)
        variance = _diagonal(likeness, z, self.stray) - np.einsum("ij,jk,ik->i", cross, self.inverse, cross)
        spread = np.sqrt(np.maximum(variance, 0.0) + _NOISE**2)
        return self.median + cross @ self.weights, self.quantile * spread


def fit(z: FloatArray, likeness: FloatArray, residual: FloatArray) -> Correction:
    """``residual``: log(measured / predicted) of the measured layers."""
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
    """z: where a layer lies among all layers; a distance of 2 is still near."""
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
