"""Passes over the data that a metric takes at each batch size, and epochs of work in a pass.

**Passes to a target** (``passes_to``). Samples are converted from passes to epochs of work, where runs of all batch sizes
follow nearly one curve; the curve of each batch size (``final_metric``: its own rows, between them the shape of all) is
evaluated where it crosses the target. A batch size that was sampled one pass before the target and at it counts as
measured: its own two rows decide alone. The error of a crossing itself,

    gap^2 / 12 + noise^2       gap: from its row before the crossing to its row after it, less one pass; noise: rows scatter

determines how far it is shrunk to those of neighbouring batch sizes (``kriging``). A jackknife adds the variance that all
crossings have in common, that of the pooled curve, except where the target was measured; where other batch sizes were not
sampled near the target, or not at all, the possible error of the law is added too.
Where runs stopped when they reached the target, their crossings decide alone (``crossings``).

**Work** (``Work``). How passes over the data become epochs of work, by batch size: what larger batches cost in examples.
To reach the same metric at batch B takes more examples than at the smallest batch M0 (McCandlish et al. 2018: in proportion
to 1 + B/phi, phi the gradient noise scale, which grows while training). With u epochs of work (= passes at M0):

    passes(B, u) = u + (B/M0 - 1)^r c u^q                       ``PowerLaw``: learned from metrics alone
    passes(B, u) = integral over u of (phi(u) + B)/(phi(u) + M0)  ``ByNoise``: the noise scale was measured

q < 1 says that phi grows, r < 1 that large batches cost less than a constant phi predicts. c, q and r are those under which
all runs, whatever their batch size, lie best on one curve of metric over work; c = 0 (batch size does not matter) is among
the values tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from coadapt.model import Fact
from coadapt.prediction._base import FloatArray
from coadapt.prediction.gradient_noise import carried
from coadapt.prediction.samples.crossings import chance_reached, crossings_of, log_passes
from coadapt.prediction.samples.final_metric import MetricCurves, curves_of, metrics_at
from coadapt.prediction.samples.isotonic import Shape, averaged, fit_curve, shaped, value_at
from coadapt.prediction.samples.kriging import along
from coadapt.prediction.samples.sample_table import MetricTable, metric_columns

#: Shrinkage of the highest metric of a batch size to those of others: they differ less in work than rows scatter.
_NUGGET = 1.0
_PARTS = 8
#: Lower bound of the uncertainty.
_LEAST_SD = 0.01
#: Rows within this share of the range tell how much rows scatter near the target.
_WINDOW = 0.1
#: Where a batch size has no sample on one side of the crossing, the gap there counts as this, in ln passes.
_OPEN_GAP = 0.3
#: A metric is evaluated once a pass (or slightly more than an epoch of work): there are no values in between.
_PASS = 1.1

#: Share by which ln of the extra passes is off when a noise scale is carried to other batch sizes (bert, cifar10, imagenet: 0.3; made-up tasks: 0.23).
_NOISE_CARRIED = 0.25
#: And by which one run differs from another anyhow.
_RUN_SD = 0.03
#: Spread of ln passes per e-fold of batch size, where other batch sizes were seen at the start of their runs only, and never;
#: at the start: less work than the target takes, by this in logarithms.
_EARLY_SEEN, _NEVER_SEEN, _AWAY = 0.12, 0.25, math.log(4.0)


class PassesTo(NamedTuple):
    """Passes to the target per batch size, spread of their logarithm, P(ever reached).

    Where the target is not reached, the passes are those to the last sample.
    """

    passes: FloatArray
    log_sd: FloatArray
    reached: FloatArray


def passes_to(table: MetricTable, target: float, batches: FloatArray, work: Work | None = None) -> PassesTo:
    """Passes over the data until a metric reaches its target, for each batch size.

    Args:
        table: Sampled metrics.
        target: The metric to reach.
        batches: Batch sizes to answer for.
        work: How passes become work, where that is known better than from the samples.
    """
    sizes = tuple(sorted({float(batch) for batch in batches}))
    found = _stopped(table, target, sizes)
    if found is None:
        found = _fitted(table, target, sizes) if work is None else _passes_to(table, target, sizes, work)
    return PassesTo(*(column[np.searchsorted(sizes, batches)] for column in found))


@lru_cache(maxsize=512)
def _stopped(table: MetricTable, target: float, sizes: tuple[float, ...]) -> PassesTo | None:
    """From runs that stopped at the target; None where they went on."""
    found = crossings_of(table, target)
    if found is None:
        return None
    at = np.log(sizes)
    middle, spread = log_passes(found, at)
    return PassesTo(np.exp(middle), np.maximum(spread, _LEAST_SD), chance_reached(found, at))


@lru_cache(maxsize=512)
def _fitted(table: MetricTable, target: float, sizes: tuple[float, ...]) -> PassesTo:
    return _passes_to(table, target, sizes, fit(table, target))


def _passes_to(table: MetricTable, target: float, sizes: tuple[float, ...], law: Work) -> PassesTo:
    sign = 1.0 if table.higher_is_better else -1.0
    rows = metric_columns(table)
    passes = rows[:, 1].copy()
    rows[:, 1] = law.work(rows[:, 0], passes)
    rows[:, 2] *= sign
    goal = sign * target
    noise = _noise(rows, goal)
    at = np.log(sizes)
    log_work, left, highest = _shrunk(rows, passes, at, goal, noise, law)
    own = [rows[:, 0] == size for size in sizes]
    known = [_measured(passes[mine], rows[mine, 2], goal) is not None for mine in own]
    left = _carried(law, rows, at, log_work, left)
    spread = left + np.where(known, 0.0, _jackknife(rows, passes, at, goal, noise, law) ** 2)
    reached = ndtr((highest - goal) / max(noise / 2, 1e-9 * abs(goal) + 1e-12))
    needed = law.passes(np.array(sizes), np.exp(log_work))
    return PassesTo(needed, np.maximum(np.sqrt(spread), _LEAST_SD), np.asarray(reached))


def _shrunk(
    rows: FloatArray, passes: FloatArray, at: FloatArray, goal: float, noise: float, law: Work
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln work at the crossing, its variance, and the highest metric, at each of ``at`` (ln B)."""
    curves = curves_of(rows, "rising", _NUGGET)
    log_batches = np.array(curves.log_batches)
    own = _crossings(curves, goal)
    moved = (_crossings(curves, goal + noise / 2) - _crossings(curves, goal - noise / 2)) / 2
    variance = moved**2 + _LEAST_SD**2
    row_batch = np.log(rows[:, 0])
    for i, log_batch in enumerate(log_batches):
        mine = np.abs(row_batch - log_batch) < 1e-9
        batch = np.exp(log_batches[i : i + 1])
        measured = _measured(passes[mine], rows[mine, 2], goal)
        if measured is not None:
            own[i] = math.log(law.work(batch, np.array([measured]))[0])
        at_passes = float(law.passes(batch, np.exp(own[i : i + 1]))[0])
        variance[i] += _gap(passes[mine], at_passes) ** 2
    log_work, left = along(log_batches, own, variance, at)
    last = np.stack([np.exp(at), np.full(len(at), rows[:, 1].max())], axis=1)
    return log_work, left, metrics_at(curves, last)


def _carried(
    law: Work, rows: FloatArray, at: FloatArray, log_work: FloatArray, left: FloatArray
) -> FloatArray:
    """Variance of the crossings with that of the law, which knows little of batch sizes that were never seen near the target."""
    first = float(np.log(rows[:, 0].min()))
    others = rows[np.log(rows[:, 0]) > first + 1e-9, 1]
    if isinstance(law, ByNoise) and not others.size:
        # a noise scale that is off by a factor is off in the passes that a larger batch needs beyond those of the first
        more = np.log(law.passes(np.exp(at), np.exp(log_work))) - log_work
        return np.asarray(left.min() + _RUN_SD**2 + (_NOISE_CARRIED * more) ** 2)
    if not isinstance(law, PowerLaw):
        return left
    if not others.size:
        return np.asarray(left + (_NEVER_SEEN * (at - first)) ** 2)
    away = np.clip((log_work - math.log(others.max())) / _AWAY, 0.0, 1.0)
    return np.asarray(left + (_EARLY_SEEN * away * (at - first)) ** 2)


def _measured(passes: FloatArray, metric: FloatArray, goal: float) -> float | None:
    """Passes to the goal where a batch size was seen one pass before it and at it: then nothing is left to lend from others."""
    if len(passes) < 2:
        return None
    curve = fit_curve(passes, metric, "rising")
    knots, height = np.array(curve.x), np.array(curve.y)
    i = int(np.searchsorted(height, goal))
    if not 0 < i < len(knots) or knots[i] - knots[i - 1] > _PASS:
        return None
    return first_above(knots, height, goal)


def _crossings(curves: MetricCurves, goal: float) -> FloatArray:
    """ln of the work at which the curve of each sampled batch size reaches the goal; at the last sample where it does not."""
    work = np.array(curves.curves[0].x)
    return np.log([first_above(work, np.array(curve.y), goal) for curve in curves.curves])


def first_above(x: FloatArray, y: FloatArray, goal: float) -> float:
    """Where a rising sequence reaches the goal, linear between its points; the last x if it does not."""
    above = np.flatnonzero(y >= goal)
    if not len(above):
        return float(x[-1])
    i = int(above[0])
    if i == 0:
        return float(x[0])
    share = (goal - y[i - 1]) / (y[i] - y[i - 1])
    return float(x[i - 1] + share * (x[i] - x[i - 1]))


def _jackknife(
    rows: FloatArray, passes: FloatArray, at: FloatArray, goal: float, noise: float, law: Work
) -> FloatArray:
    """Spread of the crossings under leaving out a part of the rows at a time; 0 where there is nothing to leave out."""
    parts = min(_PARTS, len(rows) // 2)
    if parts < 2:
        return np.zeros(len(at))
    part = np.random.default_rng(0).permutation(len(rows)) % parts
    found = np.array(
        [_shrunk(rows[part != k], passes[part != k], at, goal, noise, law)[0] for k in range(parts)]
    )
    return np.asarray(np.sqrt((parts - 1) * found.var(axis=0)))


def _noise(rows: FloatArray, goal: float) -> float:
    """Scatter of single rows around the curve of their own batch size, near the goal; a curve has as many free numbers as steps."""
    near = np.abs(rows[:, 2] - goal) < _WINDOW * np.ptp(rows[:, 2])
    left = free = 0.0
    for batch in np.unique(rows[:, 0]):
        mine = rows[rows[:, 0] == batch]
        curve = fit_curve(mine[:, 1], mine[:, 2], "rising")
        close = near[rows[:, 0] == batch]
        off = mine[:, 2] - value_at(curve, mine[:, 1])
        left += float((off[close] ** 2).sum())
        free += close.sum() - len(np.unique(value_at(curve, mine[close, 1])))
    return math.sqrt(left / (free + 1))


def _gap(own: FloatArray, at: float) -> float:
    """From the sample before a crossing to the one after it, less one pass, as the spread in ln passes of what may lie anywhere between.

    Where there is none on one side, a crossing far from the nearest on the other is a guess, and the less sure the further.
    """
    below, above = own[own < at], own[own >= at]
    low = float(below.max()) if below.size else at * math.exp(-_OPEN_GAP)
    high = float(above.min()) if above.size else at * math.exp(_OPEN_GAP)
    return math.log(max(high - _PASS, low) / low) / math.sqrt(12)


#: Extra passes at the largest batch size and the last epoch, as a share, and exponents that are tried first.
_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 6.0, 12.0)
_EXPONENTS = (0.4, 0.7, 1.0)
_POWERS = (0.7, 0.85, 1.0)
_ROUNDS, _NEWTON = 6, 12
#: Unless fewer rows than these are left, or than two for each batch size: fewer rows do not determine three parameters.
_ENOUGH = 12


class Work(Protocol):
    """Converts between passes and epochs of work, for arrays of equal length."""

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """Passes at ``batch`` that do ``work`` epochs of work."""

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """Epochs of work that ``passes`` at ``batch`` do."""


class PowerLaw(Fact, frozen=True):
    """``passes = work + (batch / initial - 1)^r c work^q``."""

    initial: float
    c: float = 0.0
    q: float = 1.0
    r: float = 1.0

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """See ``Work``."""
        return np.asarray(work + self._extra(batch) * work**self.q)

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """See ``Work``: in ln work the equation is convex, so that Newton's steps from above do not overshoot."""
        found = np.asarray(passes, dtype=np.float64)
        if self.c == 0:
            return found
        extra, log_passes = self._extra(batch), np.log(passes)
        log_work = log_passes
        for _ in range(_NEWTON):
            work = np.exp(log_work)
            more = extra * work**self.q
            total = work + more
            log_work = log_work - (np.log(total) - log_passes) * total / (work + self.q * more + 1e-300)
            log_work = np.minimum(log_work, log_passes)
        return np.asarray(np.exp(log_work))

    def _extra(self, batch: FloatArray) -> FloatArray:
        return np.asarray(self.c * np.maximum(batch / self.initial - 1, 0.0) ** self.r)


class ByNoise(Fact, frozen=True):
    """From the noise scale at each epoch of work, measured at M0 and carried to other batch sizes (``prediction.gradient_noise``); the last one holds beyond."""

    initial: float
    epochs: tuple[float, ...]
    phi: tuple[float, ...]

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """See ``Work``."""
        return self._per_batch(batch, lambda mine, knots, sums: _linear(work[mine], knots, sums))

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """See ``Work``."""
        return self._per_batch(batch, lambda mine, knots, sums: _linear(passes[mine], sums, knots))

    def _per_batch(
        self,
        batch: FloatArray,
        convert: Callable[[npt.NDArray[np.bool_], FloatArray, FloatArray], FloatArray],
    ) -> FloatArray:
        found = np.empty(len(batch))
        for size in np.unique(batch):
            mine = batch == size
            found[mine] = convert(mine, *self._sums(float(size)))
        return found

    def _sums(self, batch: float) -> tuple[FloatArray, FloatArray]:
        knots, phi = np.concatenate([[0.0], self.epochs]), np.array(self.phi)
        there = np.exp(carried(np.log(phi), self.initial, max(batch, self.initial)))
        rate = (there + max(batch, self.initial)) / (there + self.initial)
        return knots, np.concatenate([[0.0], np.cumsum(np.diff(knots) * rate)])


def fit(table: MetricTable, near: float | None = None) -> PowerLaw:
    """Fit the law under which the samples lie best on one curve; c = 0 for a single batch size."""
    rows = metric_columns(table)
    initial = float(rows[:, 0].min())
    if len(np.unique(rows[:, 0])) < 2:
        return PowerLaw(initial=initial)
    if near is not None:
        enough = min(max(_ENOUGH, 2 * len(np.unique(rows[:, 0]))), len(rows))
        apart = np.sort(np.abs(rows[:, 2] - near))
        width = max(_WINDOW * float(np.ptp(rows[:, 2])), float(apart[enough - 1]))
        rows[:, 2] = np.clip(rows[:, 2], near - width, near + width)
    shape: Shape = "rising" if table.higher_is_better else "falling"
    scale, longest = float(rows[:, 0].max()) / initial - 1, float(rows[:, 1].max())

    def tried(share: float, q: float, r: float) -> _Tried:
        law = PowerLaw(initial=initial, c=share * longest ** (1 - q) / scale**r, q=q, r=r)
        return _misfit(rows, law, shape), (share, q, r), law

    best = tried(0.0, 1.0, 1.0)
    for share in _SHARES[1:]:
        for q in _EXPONENTS:
            for r in _POWERS:
                best = min(best, tried(share, q, r), key=lambda one: one[0])
    step = 0.3
    for _ in range(_ROUNDS if best[1][0] else 0):
        share, q, r = best[1]
        around = [tried(share * float(np.exp(way * step)), q, r) for way in (-1, 1)]
        best = min([best, *around], key=lambda one: one[0])
        step /= 2
    return best[2]


#: Misfit, (share, q, r), and the law.
_Tried = tuple[float, tuple[float, float, float], PowerLaw]


def _misfit(rows: FloatArray, law: PowerLaw, shape: Shape) -> float:
    """Squared error of one isotonic curve through all rows, each run at its work; rows at the same work differ from their mean, too."""
    done = law.work(rows[:, 0], rows[:, 1])
    at, mean, count = averaged(done, rows[:, 2])
    curve = shaped(mean, count, shape)
    return float(((rows[:, 2] - curve[np.searchsorted(at, done)]) ** 2).sum())


def _linear(x: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Linear between knots, and on beyond the last one."""
    slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    return np.asarray(
        np.where(x > knots[-1], values[-1] + slope * (x - knots[-1]), np.interp(x, knots, values))
    )
