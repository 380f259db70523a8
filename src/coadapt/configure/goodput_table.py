"""The goodput of many jobs at the same places, computed in one vectorised pass at every decision.

The results equal those of ``best_batch.best_goodput``, except that only some of its candidates are tried
(``_looked_at``) and residuals are in single precision; both stay within a fraction of a percent. No result depends on
which other jobs are in the table.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.configure.best_batch import FloatArray, IntArray, SpeedModel, candidates
from coadapt.configure.curve import Answer, Curve, FittedCurve, question_key
from coadapt.model import Batch
from coadapt.prediction._base import Singles
from coadapt.prediction.gradient_noise import efficiencies_over
from coadapt.prediction.step_time._base import FittedStepTime

#: Number of candidates of ``best_batch`` that are evaluated, and of those the last before one more pass.
_LOOKED_AT, _LAST = 9, 3
#: Jobs evaluated at a time: more do not fit the processor's cache.
_CHUNK = 128


class Question(NamedTuple):
    """One job: its model (one that has a ``batch_group``), its limits, its total batch size if that is given."""

    model: SpeedModel
    limits: Batch
    fixed: int | None = None


class Speeds(NamedTuple):
    """Results of one job: goodput by place; examples per second and total batch size of all candidates, [candidate,
    place].
    """

    goodput: FloatArray
    examples_per_s: npt.NDArray[np.float32]
    batch: FloatArray


class _Grid(NamedTuple):
    """Values shared by all jobs with the same limits: [candidate, place]."""

    atomic: Singles
    terms: Singles
    accumulation: Singles
    batch: FloatArray
    log_batch: FloatArray
    allowed: npt.NDArray[np.bool_]


def speeds(questions: Sequence[Question], nodes: tuple[int, ...], replicas: tuple[int, ...]) -> list[Speeds]:
    """Returns the result of each question at (nodes, replicas) that can run."""
    keys = [(type(asked.model.step_time), asked.limits, asked.fixed) for asked in questions]
    by_key = {key: _grid(key[0], key[1], nodes, replicas, key[2]) for key in set(keys)}
    grids = [by_key[key] for key in keys]
    alike: dict[tuple[type, Hashable, int], list[int]] = {}
    for row, (asked, key, grid) in enumerate(zip(questions, keys, grids, strict=True)):
        alike.setdefault((key[0], asked.model.step_time.batch_group(), len(grid.batch)), []).append(row)
    found: dict[int, Speeds] = {}
    on, of = np.array(nodes), np.array(replicas)
    for rows in alike.values():
        for at in range(0, len(rows), _CHUNK):
            some = rows[at : at + _CHUNK]
            answers = _speeds([questions[row] for row in some], [grids[row] for row in some], on, of)
            found.update(zip(some, answers, strict=True))
    return [found[row] for row in range(len(questions))]


@lru_cache(maxsize=256)
def _grid(
    fitted: type[FittedStepTime],
    limits: Batch,
    nodes: tuple[int, ...],
    replicas: tuple[int, ...],
    fixed: int | None,
) -> _Grid:
    found = candidates(limits, replicas, fixed)
    rows = np.array([_looked_at(column) for column in found.accumulation.T.tolist()]).T
    atomic = np.take_along_axis(found.atomic, rows, axis=0)
    accumulation = np.take_along_axis(found.accumulation, rows, axis=0)
    batch = (np.array(replicas) * atomic * (accumulation + 1)).astype(np.float64)
    return _Grid(
        atomic.astype(np.float32),
        fitted.batch_terms(atomic),
        accumulation.astype(np.float32),
        batch,
        np.log(batch),
        np.take_along_axis(found.allowed, rows, axis=0),
    )


def _looked_at(accumulation: Sequence[int]) -> list[int]:
    """Which candidates are looked at: speed falls with each pass more, so the last before one, and what fills the gaps."""
    count = len(accumulation)
    if count <= _LOOKED_AT:
        return list(range(count))
    last = [i for i in range(count - 1) if accumulation[i + 1] > accumulation[i]]
    chosen = sorted({0, count - 1, *last[:_LAST]})
    while len(chosen) < _LOOKED_AT:
        gap, low = max((b - a, -a) for a, b in pairwise(chosen))
        chosen = sorted([*chosen, gap // 2 - low])
    return chosen


def _speeds(
    questions: Sequence[Question], grids: Sequence[_Grid], nodes: IntArray, replicas: IntArray
) -> list[Speeds]:
    models = [asked.model for asked in questions]
    atomic, terms, accumulation, batch, log_batch, allowed = (
        np.stack(each) for each in zip(*grids, strict=True)
    )
    fitted = [model.step_time for model in models]
    grad, step = fitted[0].times_many(fitted, atomic, terms, nodes, replicas)
    examples = np.where(allowed, batch / (accumulation * grad + step), 0.0)
    useful = efficiencies_over(
        [(*model.grad, model.grad_batch or model.initial_batch) for model in models],
        np.array([float(model.initial_batch) for model in models]),
        batch.reshape(len(models), -1),
        log_batch.reshape(len(models), -1),
        np.array([float(asked.limits.max) for asked in questions]),
        carry=np.array([model.grad_batch > 0 for model in models]),
    )
    goodput = _highest(examples * useful.reshape(examples.shape), log_batch, accumulation)
    kept = examples.astype(np.float32)
    return [Speeds(best, speed, grid.batch) for best, speed, grid in zip(goodput, kept, grids, strict=True)]


def _highest(goodput: FloatArray, log_batch: FloatArray, accumulation: Singles) -> FloatArray:
    """Of all candidates (axis 1), and between them: the top of the parabola through the best and its neighbours, where
    no pass begins between these."""
    count = goodput.shape[1]
    if count < 3:
        return np.asarray(goodput.max(axis=1))
    best = np.clip(goodput.argmax(axis=1), 1, count - 2)[:, None]
    around = np.concatenate([best - 1, best, best + 1], axis=1)
    y = np.take_along_axis(goodput, around, axis=1)
    x = np.take_along_axis(log_batch, around, axis=1)
    passes = np.take_along_axis(accumulation, around, axis=1)
    before, after = np.maximum(x[:, 1] - x[:, 0], 1e-12), np.maximum(x[:, 2] - x[:, 1], 1e-12)
    rising, falling = (y[:, 1] - y[:, 0]) / before, (y[:, 2] - y[:, 1]) / after
    bend = (falling - rising) / (before + after)
    slope = (rising * after + falling * before) / (before + after)
    smooth = (passes[:, 0] == passes[:, 2]) & (bend < 0) & (y[:, 0] > 0) & (y[:, 2] > 0)
    step = np.where(smooth, -slope / (2 * np.where(smooth, bend, -1.0)), 0.0)
    within = (step > -before) & (step < after)
    top = np.where(within, y[:, 1] + slope * step + bend * step**2, 0.0)
    return np.asarray(np.maximum(goodput.max(axis=1), top))


def goodput_rows(
    curves: Sequence[Curve], nodes: IntArray, replicas: IntArray, gpu_type: str = "gpu"
) -> FloatArray:
    """Returns goodput[curve, place]; a curve caches its answer until its measurements change.

    Args:
        curves: one curve per job.
        nodes: node count of each place.
        replicas: replica count of each place.
        gpu_type: GPU type of all places.
    """
    key = question_key(gpu_type, nodes, replicas)
    new: dict[int, tuple[FittedCurve, Question]] = {}
    found = np.zeros((len(curves), len(nodes)))
    for row, curve in enumerate(curves):
        known = curve.answers.get(key) if isinstance(curve, FittedCurve) else None
        if known is not None:
            found[row] = known.goodput
            continue
        model = curve.batchable(gpu_type) if isinstance(curve, FittedCurve) else None
        if model is None or not isinstance(curve, FittedCurve):
            found[row] = curve.goodput(nodes, replicas, gpu_type)
        else:
            new[row] = curve, Question(model, curve.limits(gpu_type), curve.fixed)
    runs = np.flatnonzero((nodes >= 1) & (nodes <= replicas))
    if not new or not runs.size:
        return found
    places = tuple(nodes[runs].tolist()), tuple(replicas[runs].tolist())
    at = {
        (n, k): (place, column)
        for column, (n, k, place) in enumerate(zip(*places, runs.tolist(), strict=True))
    }
    answers = speeds([asked for _, asked in new.values()], *places)
    for (row, (curve, _)), answer in zip(new.items(), answers, strict=True):
        found[row, runs] = answer.goodput
        mine = found[row].copy()
        mine.flags.writeable = False
        curve.answers[key] = Answer(mine, answer.examples_per_s, answer.batch, at)
    return found
