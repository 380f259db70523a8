"""Training loss by epoch: Optimus (Peng et al., EuroSys 2018), section 3.1.

    l(k) = 1 / (b0 k + b1) + b2,   b0, b1, b2 >= 0

fitted to losses divided by the largest one, outliers replaced, later thirds weighing 4 and 16 times as
much as the first (as released), from three points on. A job that stops at a target loss needs
k = (1/(l - b2) - b1) / b0 epochs, if it gets there at all: b2 is the plateau. One that stops when
the loss falls by less than delta in w epochs needs b0 k + b1 = u with u (u + b0 w) = b0 w / delta.

Where we deviate: the answer may be "never" (None) where the released code says "20 epochs more", and has
an interval. It comes from the scatter of the losses around the curve, so its upper end may be infinite.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy.optimize import least_squares

from coadapt.model import Fact, Measurement
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, t_quantile

MIN_POINTS = 3
#: Above so many points neighbours are averaged: a job of a million reports needs no more for a curve.
MAX_POINTS = 256
#: Neighbours on each side with which a loss is compared to detect an outlier.
_NEIGHBOURS = 2
_SEGMENTS, _SEGMENT_FACTOR = 3, 4.0
#: Plateaus to start from, as shares of the smallest loss: the problem has local minima.
_START_PLATEAUS = (0.0, 0.5, 0.9)
#: No loss curve is known better than this, relative to its largest loss.
_LEAST_SCATTER = 1e-3


class LossTable(Fact, frozen=True):
    """(epoch, loss) in order of epochs; ``metric`` is the name under which agents report it."""

    metric: str = "loss"
    points: tuple[tuple[float, float], ...] = ()


class LossParams(Fact, frozen=True):
    """Coefficients of the curve of loss / ``unit``, and the scatter around it."""

    b0: float
    b1: float
    b2: float
    unit: float
    scatter: float
    points: int


def observe(table: LossTable, measurement: Measurement) -> LossTable:
    """The table with the reported loss; the same object if there is none, or it is not a number."""
    loss, epoch = measurement.metrics.get(table.metric), measurement.epoch
    if loss is None or epoch is None or not (math.isfinite(loss) and loss >= 0):
        return table
    at = bisect_left(table.points, (epoch, loss))
    if at < len(table.points) and table.points[at] == (epoch, loss):
        return table
    points = (*table.points[:at], (epoch, loss), *table.points[at:])
    return LossTable(metric=table.metric, points=_thinned(points))


def _thinned(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if len(points) <= MAX_POINTS:
        return points
    pairs = zip(points[0::2], points[1::2], strict=False)
    halved = tuple(((k0 + k1) / 2, (l0 + l1) / 2) for (k0, l0), (k1, l1) in pairs)
    return halved if len(points) % 2 == 0 else (*halved, points[-1])


def fit(table: LossTable, prior: LossParams | None = None) -> LossParams | None:
    """The curve; ``prior`` while there are fewer than three points. Memoised."""
    return _fit(table.points) if len(table.points) >= MIN_POINTS else prior


@lru_cache(maxsize=1024)
def _fit(points: tuple[tuple[float, float], ...]) -> LossParams:
    epochs, losses = np.array(points, dtype=np.float64).T
    unit = float(losses.max()) or 1.0
    y = without_outliers(losses / unit)
    n = len(y)
    weight = _SEGMENT_FACTOR ** (np.arange(n) * _SEGMENTS // n)
    weight /= math.sqrt(float(np.mean(weight**2)))

    def residual(b: FloatArray) -> FloatArray:
        return np.asarray(weight * (1 / (b[0] * epochs + b[1]) + b[2] - y))

    def jacobian(b: FloatArray) -> FloatArray:
        square = weight / (b[0] * epochs + b[1]) ** 2
        return np.stack([-epochs * square, -square, weight], axis=1)

    lower = np.array([0.0, 1e-6, 0.0])  # b1 = 0 would be an infinite loss at the start
    best = min(
        (
            least_squares(residual, start, jac=jacobian, bounds=(lower, np.inf), x_scale="jac")
            for start in _starts(epochs, y, lower)
        ),
        key=lambda found: float(found.cost),
    )
    scatter = math.sqrt(2 * float(best.cost) / max(n - 3, 1))
    b0, b1, b2 = best.x.tolist()
    if 1 / b1 - 1 / (b0 * float(epochs[-1]) + b1) < _LEAST_SCATTER:
        b0 = 0.0  # no fall that could be told from noise: a plateau, not a target reached in a million epochs
    return LossParams(b0=b0, b1=b1, b2=b2, unit=unit, scatter=max(scatter, _LEAST_SCATTER), points=n)


def without_outliers(losses: FloatArray) -> FloatArray:
    """Losses, with each that lies outside the range of its neighbours replaced by their mean."""
    clean = losses.copy()
    for i in range(_NEIGHBOURS, len(losses) - _NEIGHBOURS):
        around = np.delete(losses[i - _NEIGHBOURS : i + _NEIGHBOURS + 1], _NEIGHBOURS)
        if not around.min() <= losses[i] <= around.max():
            clean[i] = around.mean()
    return clean


def _starts(epochs: FloatArray, y: FloatArray, lower: FloatArray) -> list[FloatArray]:
    """Given the plateau, 1/(l - b2) is a line in k: a regression gives the other two."""
    starts = []
    centred = epochs - epochs.mean()
    spread = float(centred @ centred) or 1.0
    for share in _START_PLATEAUS:
        b2 = share * float(y.min())
        inverse = 1 / np.maximum(y - b2, 1e-3)
        slope = float(centred @ inverse) / spread
        intercept = float(inverse.mean()) - slope * float(epochs.mean())
        starts.append(np.maximum([slope, intercept, b2], lower + 1e-6))
    return starts


def predict(params: LossParams, x: float) -> Interval:
    """Loss after ``x`` epochs."""
    value = 1 / (params.b0 * x + params.b1) + params.b2
    half = _half_width(params)
    unit = params.unit
    return Interval(value=value * unit, low=max(value - half, 0.0) * unit, high=(value + half) * unit)


def epochs_to(params: LossParams, target_loss: float) -> Interval | None:
    """Epochs from the start until the loss is ``target_loss``; None if the curve stays above it."""
    target, half = target_loss / params.unit, _half_width(params)
    value = _reaches(params, target)
    if math.isinf(value):
        return None
    return Interval(value=value, low=_reaches(params, target + half), high=_reaches(params, target - half))


def epochs_until_flat(params: LossParams, change: float, window: float) -> Interval:
    """Epochs from the start until the loss falls by less than ``change`` in ``window`` epochs."""
    delta = change / params.unit
    half = _half_width(params)
    value = _flattens(params, delta, window)
    high = _flattens(params, delta - half, window) if delta > half else math.inf
    return Interval(value=value, low=_flattens(params, delta + half, window), high=high)


def _half_width(params: LossParams) -> float:
    spread = params.scatter * math.sqrt(1 + 3 / params.points)
    return spread * t_quantile(params.points - 3)


def _reaches(params: LossParams, target: float) -> float:
    above = target - params.b2
    if above <= 0:
        return math.inf
    left = 1 / above - params.b1
    if left <= 0:
        return 0.0
    return left / params.b0 if params.b0 > 0 else math.inf


def _flattens(params: LossParams, delta: float, window: float) -> float:
    fall = params.b0 * window
    if fall <= 0:
        return 0.0
    u = (math.sqrt(fall * fall + 4 * fall / delta) - fall) / 2
    return max((u - params.b1) / params.b0, 0.0)
