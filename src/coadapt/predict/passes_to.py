"""How many passes over the data a metric takes at each batch size, and how sure that is.

Samples are moved from passes to epochs of work (``work_epochs``), where runs of all batch sizes follow nearly one curve; the curve of each batch
size (``metric_curves``: its own rows, between them the shape of all) is read off where it crosses the target. A batch size that was seen one pass
before the target and at it was measured: its own two rows decide alone. What a crossing's own error is,

    gap^2 / 12 + noise^2       gap: from its row before the crossing to its row after it, less one pass; noise: rows scatter

tells how far it is shrunk to those of neighbouring batch sizes (``along_batches``). To the spread that leaves, a jackknife adds what all crossings
have in common, the pooled curve, except where the target was measured; and where other batch sizes were not seen near the target, or not at all,
so much comes to it as the law may be off.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from coadapt.predict import work_epochs
from coadapt.predict._base import FloatArray
from coadapt.predict.along_batches import along
from coadapt.predict.isotonic import fit_curve, value_at
from coadapt.predict.metric_curves import MetricCurves, curves_of, metrics_at
from coadapt.predict.samples import MetricTable, metric_columns
from coadapt.predict.work_epochs import ByNoise, PowerLaw, Work

#: How much the highest metric of a batch size leans on those of others: they differ less in work than rows scatter.
_NUGGET = 1.0
_PARTS = 8
#: Nobody knows better than this.
_LEAST_SD = 0.01
#: Rows within this share of the range tell how much rows scatter near the target.
_WINDOW = 0.1
#: Where a batch size has no sample on one side of the crossing, the gap there counts as this, in ln passes.
_OPEN_GAP = 0.3
#: A metric is looked at once a pass (or an epoch of work, a little more): between two such looks there is nothing to see.
_PASS = 1.1

#: Share by which ln of the extra passes is off when a noise scale is carried to other batch sizes (bert, cifar10, imagenet: 0.3; made-up tasks: 0.23).
_NOISE_CARRIED = 0.25
#: And by which one run differs from another anyhow.
_RUN_SD = 0.03
#: Spread of ln passes per e-fold of batch size, where other batch sizes were seen at the start of their runs only, and never;
#: at the start: less work than the target takes, by this in logarithms.
_EARLY_SEEN, _NEVER_SEEN, _AWAY = 0.12, 0.25, math.log(4.0)


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
