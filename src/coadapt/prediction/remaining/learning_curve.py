"""When a metric will reach its target, by the course of its curve so far: a distribution, or "not on this course".

Three families, each the asymptote c and the fall a > 0 times a shape that starts at 1 (lower is better here;
a metric that rises is turned round):

    y(k) = c + a g(k)    g = 1 / (1 + k/t)         Optimus (EuroSys 2018): 1/(b0 k + b1) + b2
                         g = (1 + k/k1)^-p          power law, k1 the first point's work
                         g = exp(-k/t)              exponential

Given its one shape parameter a curve is linear in c and a. So each family is a grid of shapes with weighted least
squares in closed form: no start values, no local minima, a fraction of a millisecond. The evidence of a
cell is exp(-BIC/2), with as many effective points as the residuals' autocorrelation leaves; all families
have three parameters, so the residuals decide. The answer is the mixture over all cells, not the best one:
where the data cannot tell a power law from an exponential, the interval says so.

A learning-rate step makes a new curve: a split is accepted where two curves beat one by BIC, and the curve continues from
the last split. What a *future* step would bring no curve can tell; "not on this course" means just that.

**Training loss, as in Optimus** (Peng et al., EuroSys 2018, section 3.1; ``fit_loss``):

    l(k) = 1 / (b0 k + b1) + b2,   b0, b1, b2 >= 0

fitted to losses divided by the largest one, outliers replaced, later thirds weighing 4 and 16 times as
much as the first (as released), from three points on. A job that stops at a target loss needs
k = (1/(l - b2) - b1) / b0, if it gets there at all: b2 is the plateau. k is any measure of progress: the paper
counts steps, the ``optimus`` policy counts work. Where we deviate: the answer may be "never" (None) where the released
code says "20 epochs more", and has an interval. It comes from the scatter of the losses around the curve, so it may have
no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, t_quantile

MIN_POINTS = 4
#: A target further away than this many times the work done counts as not reachable on this course.
HORIZON = 30.0
#: Points after a learning-rate step before it is believed to be one.
_LEAST_AFTER = 3
#: Difference of BIC from which on two curves are believed instead of one: "strong" evidence by the usual scale.
_LEAST_GAIN = 6.0
#: How much more a step falls than the curve does a little before and after it.
_STEEPER = 2.5
#: Later points weigh more: weight = (share of the work + this)^2, as recent points tell the future.
_WEIGHT_FLOOR = 0.2
#: Evidence is never sharper than that of this number of independent points: no family is the truth.
_MOST_EFFECTIVE = 8.0
#: A metric counts as reached when its noise first touches the target, about this many deviations early.
_FIRST_TOUCH = 1.0
#: Scatter is never assumed to be smaller than this share of the fall seen so far.
_LEAST_SCATTER = 1e-3
#: How far below the last value asymptotes are believed in, in falls seen so far: exp(-excess / this).
_FURTHER_FALL = 0.7
_SHAPES = 24
#: The grids: time constants in lengths of the stretch, exponents.
_SCALES, _EXPONENTS = np.geomspace(0.03, 10.0, _SHAPES), np.geomspace(0.05, 3.0, _SHAPES)
#: Middle points of five equal shares of a normal distribution.
_NORMAL = np.array([-1.2816, -0.5244, 0.0, 0.5244, 1.2816])
MIN_LOSS_POINTS = 3
#: Neighbours on each side with which a loss is compared to detect an outlier.
_NEIGHBOURS = 2
_SEGMENTS, _SEGMENT_FACTOR = 3, 4.0
#: Plateaus to start from, as shares of the smallest loss: the problem has local minima.
_START_PLATEAUS = (0.0, 0.5, 0.9)
#: No loss curve is known better than this, relative to its largest loss.
_LEAST_LOSS_SCATTER = 1e-3


class Arrival(Fact, frozen=True):
    """Work from the start at which a target is reached: points with their weights, and the weight of never."""

    work: tuple[float, ...] = ()
    weight: tuple[float, ...] = ()
    never: float = 1.0
    #: Family with the most evidence, and points that it rests on (those after the last step).
    family: str = ""
    points: int = 0


def arrival(points: Sequence[tuple[float, float]], target: float, *, rising: bool) -> Arrival | None:
    """When the curve through ``points`` (work, metric) reaches ``target``; None if they are too few to say.

    Work must rise; values that are not numbers are left out.
    """
    kept = _clean(points)
    if len(kept) < MIN_POINTS:
        return None
    work, value = np.array(kept, dtype=np.float64).T
    y, goal = (-value, -target) if rising else (value, target)
    if float(y.min()) <= goal:
        reached = float(work[int(np.argmax(y <= goal))])
        return Arrival(work=(reached,), weight=(1.0,), never=0.0, family="reached", points=len(kept))
    fall = float(y[0] - y.min())
    if not fall > 1e-9 * max(float(np.abs(y).max()), 1e-300):
        return Arrival(family="constant", points=len(kept))
    start = last_step(work, y)
    return _arrival(work[start:], y[start:], goal, fall)


def _clean(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for work, value in points:
        if math.isfinite(work) and math.isfinite(value) and (not kept or work > kept[-1][0]):
            kept.append((work, value))
    return kept


class _Cells:
    """All curves of all families fitted to one stretch of points."""

    FAMILIES = ("inverse", "power", "exponential")

    def __init__(self, work: FloatArray, y: FloatArray) -> None:
        # the origin of a stretch lies one spacing before its first point
        self.origin = float(work[0] - (work[-1] - work[0]) / max(len(work) - 1, 1))
        if float(work[0]) <= 2 * float(work[0] - self.origin):
            self.origin = 0.0
        self.span = float(work[-1]) - self.origin
        k = (work - self.origin) / self.span
        self.first = max(float(k[0]), 0.5 / len(k))
        g = self.falls(k)
        weight = (k + _WEIGHT_FLOOR) ** 2
        weight /= weight.sum()
        mean_g, mean_y = g @ weight, float(y @ weight)
        spread = ((g - mean_g[:, None]) ** 2) @ weight
        slope = ((g - mean_g[:, None]) * (y - mean_y)) @ weight / np.maximum(spread, 1e-12)
        self.a = np.maximum(slope, 0.0)  # a curve that gets worse is a plateau
        self.c = mean_y - self.a * mean_g
        residual = y - (self.c[:, None] + self.a[:, None] * g)
        self.rss = (residual**2) @ weight
        self.residual = best = residual[int(np.argmin(self.rss))]
        self.scatter = math.sqrt(float((best**2) @ weight) * len(y) / max(len(y) - 3, 1))
        self.effective = _effective(best)
        self.mean_g, self.spread_g = mean_g, np.maximum(spread, 1e-12)

    def falls(self, k: FloatArray) -> FloatArray:
        """g of every cell at ``k``, in spans."""
        scaled = k / _SCALES[:, None]
        power = np.exp(-_EXPONENTS[:, None] * np.log1p(k / self.first))
        return np.asarray(np.concatenate([1 / (1 + scaled), power, np.exp(-scaled)]))

    def reach(self, fall: FloatArray) -> FloatArray:
        """k at which g of each cell is ``fall`` (one row per question): inf where that is not above 0."""
        t, p = _SCALES, _EXPONENTS
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            g = np.where(fall > 0, np.minimum(fall, 1.0), np.nan)
            a, b, c = np.split(g, 3, axis=-1)
            k = np.concatenate([t * (1 / a - 1), self.first * (b ** (-1 / p) - 1), -t * np.log(c)], axis=-1)
        return np.asarray(np.where(np.isnan(k), np.inf, k))


def _effective(residual: FloatArray) -> float:
    """Independent points that autocorrelated residuals are worth."""
    n = len(residual)
    total = float(residual @ residual)
    rho = float(residual[1:] @ residual[:-1]) / total if total > 0 else 0.0
    rho = min(max(rho, 0.0), 0.9)
    return max(n * (1 - rho) / (1 + rho), 2.0)


def _arrival(work: FloatArray, y: FloatArray, goal: float, fall: float) -> Arrival:
    cells = _Cells(work, y)
    scatter = max(cells.scatter, _LEAST_SCATTER * fall)
    floor = scatter**2 / len(y)
    n = min(cells.effective, _MOST_EFFECTIVE)
    log_weight = -0.5 * n * np.log(cells.rss + floor)
    excess = np.maximum(float(y[-1]) - cells.c, 0.0) / fall
    log_weight = log_weight - excess / _FURTHER_FALL
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    sd = _deviation(cells, scatter, goal)
    aim = goal + _FIRST_TOUCH * scatter + _NORMAL[:, None] * sd[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        k = cells.reach((aim - cells.c) / np.where(cells.a > 0, cells.a, np.nan))
    now = float(work[-1])
    step = float(np.median(np.diff(work))) if len(work) > 1 else now
    # the curve is past the target and the metric is not: it is due any time now
    at = np.maximum(cells.origin + k * cells.span, now + 0.5 * step)
    at = np.where(at <= now * (1 + HORIZON), at, np.inf).ravel()
    shares = np.broadcast_to(weight / len(_NORMAL), (len(_NORMAL), len(weight))).ravel()
    ends = np.isfinite(at) & (shares > 1e-6)
    by_family = weight.reshape(3, -1).sum(axis=1)
    total = float(shares[ends].sum())
    never = float(shares[~np.isfinite(at)].sum())
    return Arrival(
        work=tuple(at[ends].tolist()),
        weight=tuple((shares[ends] / max(total, 1e-300)).tolist()),
        never=min(max(never, 0.0), 1.0) if total > 0 else 1.0,
        family=_Cells.FAMILIES[int(np.argmax(by_family))],
        points=len(y),
    )


def _deviation(cells: _Cells, scatter: float, goal: float) -> FloatArray:
    """Standard deviation of each curve where it meets the goal, or of its asymptote if it does not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        g = np.where(cells.a > 0, np.clip((goal - cells.c) / cells.a, 0.0, 1.0), 0.0)
    n = max(cells.effective, 2.0)
    return np.asarray(scatter * np.sqrt((1 + (g - cells.mean_g) ** 2 / cells.spread_g) / n))


def last_step(work: FloatArray, y: FloatArray) -> int:
    """Where the present curve begins: after the last step that two curves explain better than one, else 0."""
    start = 0
    for _ in range(4):  # a training run has few learning-rate steps
        found = _split(work[start:], y[start:])
        if not found:
            return start
        start += found
    return start


def _split(work: FloatArray, y: FloatArray) -> int:
    n = len(y)
    if n < MIN_POINTS + _LEAST_AFTER:
        return 0
    # a step is a fall between the medians of neighbours; the two largest are tried
    medians = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    edges = np.arange(MIN_POINTS, n - _LEAST_AFTER + 1)
    jumps = medians[edges - 3] - medians[edges]
    # differences that no run would show again are no evidence
    least = n * (_LEAST_SCATTER * float(y.max() - y.min())) ** 2 + 1e-300
    whole = _plain_rss(work, y) + least
    best, best_gain = 0, 0.0
    for which in np.argsort(-jumps)[:2].tolist():
        at = int(edges[which])
        # a step is steep; a smooth curve falls as much a little before and after
        before = float(jumps[which - 4]) if which >= 4 else float(y[0] - y[at - 1])
        after = float(jumps[which + 4]) if which + 4 < len(jumps) else 0.0
        if jumps[which] < _STEEPER * max(abs(before), abs(after)):
            continue
        parts = _plain_rss(work[:at], y[:at]) + _plain_rss(work[at:], y[at:]) + least
        # three more parameters for the second curve, one for the place
        gain = n * math.log(whole / parts) - 4 * math.log(n)
        if gain > max(best_gain, _LEAST_GAIN) and jumps[which] > 3 * math.sqrt(parts / n):
            best, best_gain = at, gain
    return best


def _plain_rss(work: FloatArray, y: FloatArray) -> float:
    """Sum of squares of the best cell, outliers cut off: what a split is judged by."""
    if len(y) < 3:
        return float(((y - y.mean()) ** 2).sum())
    residual = np.abs(_Cells(work, y).residual)
    cut = 3 * float(np.median(residual))
    return float((np.minimum(residual, cut) ** 2).sum())


class LossParams(Fact, frozen=True):
    """Coefficients of the curve of loss / ``unit``, and the scatter around it."""

    b0: float
    b1: float
    b2: float
    unit: float
    scatter: float
    points: int


def fit_loss(points: Sequence[tuple[float, float]]) -> LossParams | None:
    """The curve through ``points`` (progress, loss); None if there are fewer than three. Memoised."""
    return _fit_loss(tuple(points)) if len(points) >= MIN_LOSS_POINTS else None


@lru_cache(maxsize=1024)
def _fit_loss(points: tuple[tuple[float, float], ...]) -> LossParams:
    from scipy.optimize import least_squares  # only here: most processes never fit a loss curve

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
    if 1 / b1 - 1 / (b0 * float(progress[-1]) + b1) < _LEAST_LOSS_SCATTER:
        b0 = 0.0  # no fall beyond noise: a plateau, not a target reached after a million epochs
    return LossParams(b0=b0, b1=b1, b2=b2, unit=unit, scatter=max(scatter, _LEAST_LOSS_SCATTER), points=n)


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
