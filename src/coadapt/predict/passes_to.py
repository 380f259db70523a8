"""How many passes over the data a metric takes at each batch size, and how sure that is.

Samples are moved from passes to epochs of work (``work_epochs``), where runs of all batch sizes follow nearly one curve; the curve of a batch
size (``metric_curves``) is read off where it crosses the target, and the work there turned back into passes. The spread of ln passes is

    sqrt(jackknife^2 + noise^2 + (gap / 3)^2)

the crossing without an eighth of the samples at a time; how much later it is if the target is half the scatter of single rows
higher; and the distance between the samples of that batch size before and after it, for what lies between was not seen (less where no batch size
was sampled there: a curve that is concave between two samples is higher than the line, which is then late, and safe).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from coadapt.predict import work_epochs
from coadapt.predict._base import FloatArray
from coadapt.predict.between_batches import gap_at
from coadapt.predict.isotonic import Shape
from coadapt.predict.metric_curves import MetricCurves, curves_of, metrics_at
from coadapt.predict.samples import MetricTable, metric_columns
from coadapt.predict.work_epochs import Work

#: How much a curve leans on those of other batch sizes: they differ less in work than rows scatter.
_NUGGET = 1.0
_PARTS = 8
#: Nobody knows better than this.
_LEAST_SD = 0.01
#: Spread of ln passes over an e-fold of batch size that was never sampled.
_BETWEEN = 0.1
#: Rows within this share of the range tell how much rows scatter near the target.
_WINDOW = 0.1
#: Where a batch size has no sample on one side of the crossing, the gap counts as this, in ln passes.
_OPEN_GAP = 0.3
#: Share of a gap of all batch sizes together that does not count.
_UNSEEN = 0.75


class PassesTo(NamedTuple):
    """Per batch size: passes to the target (to the last sample, if it is not reached), spread of their logarithm, P(ever reached)."""

    passes: FloatArray
    log_sd: FloatArray
    reached: FloatArray


def passes_to(table: MetricTable, target: float, batches: FloatArray, work: Work | None = None) -> PassesTo:
    """For each of ``batches``; ``work``: how passes become work, where that is known better than the samples tell it."""
    sizes = tuple(sorted({float(batch) for batch in batches}))
    found = _fitted(table, target, sizes) if work is None else _passes_to(table, target, sizes, work)
    return PassesTo(*(column[np.searchsorted(sizes, batches)] for column in found))


@lru_cache(maxsize=512)
def _fitted(table: MetricTable, target: float, sizes: tuple[float, ...]) -> PassesTo:
    return _passes_to(table, target, sizes, work_epochs.fit(table, target))


def _passes_to(table: MetricTable, target: float, sizes: tuple[float, ...], law: Work) -> PassesTo:
    sign = 1.0 if table.higher_is_better else -1.0
    rows = metric_columns(table)
    passes = rows[:, 1].copy()
    rows[:, 1] = law.work(rows[:, 0], passes)
    rows[:, 2] *= sign
    goal = sign * target
    curves = curves_of(rows, "rising", _NUGGET)
    noise = _noise(rows, curves, goal)
    middle, highest = _crossings(curves, sizes, goal, law)
    late, _ = _crossings(curves, sizes, goal + noise / 2, law)
    spread = _jackknife(rows, sizes, goal, law) ** 2 + (late - middle) ** 2
    log_batches = np.array(curves.log_batches)
    for i, size in enumerate(sizes):
        seen = np.log(law.passes(np.full(len(rows), size), rows[:, 1]))
        own = _gap(np.log(passes[rows[:, 0] == size]), middle[i])
        spread[i] += (max(own - _UNSEEN * _gap(seen, middle[i]), 0.0) / 3) ** 2 + _BETWEEN**2 * gap_at(
            log_batches, math.log(size)
        )
    reached = ndtr((highest - goal) / max(noise / 2, 1e-9 * abs(goal) + 1e-12))
    return PassesTo(np.exp(middle), np.maximum(np.sqrt(spread), _LEAST_SD), np.asarray(reached))


def _crossings(
    curves: MetricCurves, sizes: tuple[float, ...], goal: float, law: Work
) -> tuple[FloatArray, FloatArray]:
    """ln of the passes at which each curve reaches the goal, and the highest value of each."""
    work = np.array(curves.curves[0].x)
    crossing, highest = np.empty(len(sizes)), np.empty(len(sizes))
    for i, size in enumerate(sizes):
        value = metrics_at(curves, np.stack([np.full(len(work), size), work], axis=1))
        crossing[i], highest[i] = first_above(work, value, goal), value[-1]
    return np.log(law.passes(np.array(sizes), crossing)), highest


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


def _jackknife(rows: FloatArray, sizes: tuple[float, ...], goal: float, law: Work) -> FloatArray:
    """Spread of the crossings under leaving out a part of the rows at a time; 0 where there is nothing to leave out."""
    parts = min(_PARTS, len(rows) // 2)
    if parts < 2:
        return np.zeros(len(sizes))
    part = np.random.default_rng(0).permutation(len(rows)) % parts
    rising: Shape = "rising"
    found = np.array(
        [_crossings(curves_of(rows[part != k], rising, _NUGGET), sizes, goal, law)[0] for k in range(parts)]
    )
    return np.asarray(np.sqrt((parts - 1) * found.var(axis=0)))


def _noise(rows: FloatArray, curves: MetricCurves, goal: float) -> float:
    """Scatter of single rows near the goal."""
    off = rows[:, 2] - metrics_at(curves, rows)
    near = np.abs(rows[:, 2] - goal) < _WINDOW * np.ptp(rows[:, 2])
    return float(np.sqrt(np.mean(off[near] ** 2))) if near.sum() > 2 else float(off.std())


def _gap(own: FloatArray, at: float) -> float:
    """Distance in ln passes between the samples of a batch size on both sides of a crossing."""
    below, above = own[own < at], own[own >= at]
    low = at - float(below.max()) if below.size else _OPEN_GAP
    high = float(above.min()) - at if above.size else _OPEN_GAP
    return min(low + high, 2 * _OPEN_GAP) / math.sqrt(12)
