"""Training loss by progress: Optimus (Peng et al., EuroSys 2018), section 3.1.

    l(k) = 1 / (b0 k + b1) + b2,   b0, b1, b2 >= 0

fitted to losses divided by the largest one, outliers replaced, later thirds weighing 4 and 16 times as
much as the first (as released), from three points on. A job that stops at a target loss needs
k = (1/(l - b2) - b1) / b0, if it gets there at all: b2 is the plateau. k is any measure of progress: the paper
counts steps, the ``optimus`` policy counts work.

Where we deviate: the answer may be "never" (None) where the released code says "20 epochs more", and has
an interval. It comes from the scatter of the losses around the curve, so it may have no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import least_squares

from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, t_quantile

MIN_POINTS = 3
#: Neighbours on each side with which a loss is compared to detect an outlier.
_NEIGHBOURS = 2
_SEGMENTS, _SEGMENT_FACTOR = 3, 4.0
#: Plateaus to start from, as shares of the smallest loss: the problem has local minima.
_START_PLATEAUS = (0.0, 0.5, 0.9)
#: No loss curve is known better than this, relative to its largest loss.
_LEAST_SCATTER = 1e-3


class LossParams(Fact, frozen=True):
    """Coefficients of the curve of loss / ``unit``, and the scatter around it."""

    b0: float
    b1: float
    b2: float
    unit: float
    scatter: float
    points: int


def fit(points: Sequence[tuple[float, float]]) -> LossParams | None:
    """The curve through ``points`` (progress, loss); None if there are fewer than three. Memoised."""
    return _fit(tuple(points)) if len(points) >= MIN_POINTS else None


@lru_cache(maxsize=1024)
def _fit(points: tuple[tuple[float, float], ...]) -> LossParams:
    progress, losses = np.array(points, dtype=np.float64).T
    unit = float(losses.max()) or 1.0
    y = without_outliers(losses / unit)
    n = len(y)
    weight = _SEGMENT_FACTOR ** (np.arange(n) * _SEGMENTS // n)
    weight /= math.sqrt(float(np.mean(weight**2)))

    def residual(b: FloatArray) -> FloatArray:
        return np.asarray(weight * (1 / (b[0] * progress + b[1]) + b[2] - y))

    def jacobian(b: FloatArray) -> FloatArray:
        square = weight / (b[0] * progress + b[1]) ** 2
        return np.stack([-progress * square, -square, weight], axis=1)

    lower = np.array([0.0, 1e-6, 0.0])  # b1 = 0 would be an infinite loss at the start
    best = min(
        (
            least_squares(residual, start, jac=jacobian, bounds=(lower, np.inf), x_scale="jac")
            for start in _starts(progress, y, lower)
        ),
        key=lambda found: float(found.cost),
    )
    scatter = math.sqrt(2 * float(best.cost) / max(n - 3, 1))
    b0, b1, b2 = best.x.tolist()
    if 1 / b1 - 1 / (b0 * float(progress[-1]) + b1) < _LEAST_SCATTER:
        b0 = 0.0  # no fall that could be told from noise: a plateau, not a target reached after a million epochs
    return LossParams(b0=b0, b1=b1, b2=b2, unit=unit, scatter=max(scatter, _LEAST_SCATTER), points=n)


def without_outliers(losses: FloatArray) -> FloatArray:
    """Losses, with each that lies outside the range of its neighbours replaced by their mean."""
    clean = losses.copy()
    for i in range(_NEIGHBOURS, len(losses) - _NEIGHBOURS):
        around = np.delete(losses[i - _NEIGHBOURS : i + _NEIGHBOURS + 1], _NEIGHBOURS)
        if not around.min() <= losses[i] <= around.max():
            clean[i] = around.mean()
    return clean


def _starts(progress: FloatArray, y: FloatArray, lower: FloatArray) -> list[FloatArray]:
    """Given the plateau, 1/(l - b2) is a line in k: a regression gives the other two."""
    starts = []
    centred = progress - progress.mean()
    spread = float(centred @ centred) or 1.0
    for share in _START_PLATEAUS:
        b2 = share * float(y.min())
        inverse = 1 / np.maximum(y - b2, 1e-3)
        slope = float(centred @ inverse) / spread
        intercept = float(inverse.mean()) - slope * float(progress.mean())
        starts.append(np.maximum([slope, intercept, b2], lower + 1e-6))
    return starts


def progress_to(params: LossParams, target_loss: float) -> Interval | None:
    """Progress from the start until the loss is ``target_loss``; None if the curve stays above it."""
    target, half = target_loss / params.unit, _half_width(params)
    value = _reaches(params, target)
    if math.isinf(value):
        return None
    return Interval(value=value, low=_reaches(params, target + half), high=_reaches(params, target - half))


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
