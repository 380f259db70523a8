"""Which option is best, which is nearest to being good, and which no other beats."""

from __future__ import annotations

import numpy as np

from coadapt.configure.outlook import Outlook
from coadapt.configure.problem import Question
from coadapt.predict._base import FloatArray

#: A chance below this is none.
_NO_CHANCE = 1e-6


def best_of(question: Question, outlook: Outlook) -> int | None:
    """The best option among those that hold the limits with the confidence asked for; None if none does."""
    holds = outlook.chance >= question.confidence
    if not holds.any():
        return None
    keys = _keys(question, outlook)
    order = np.lexsort(tuple(np.where(holds, key, np.inf) for key in reversed(keys)))
    return int(order[0])


def likeliest_of(question: Question, outlook: Outlook) -> int:
    """The option nearest to holding the limits, where none holds them with the confidence asked for.

    The best of those that have at least that share of the highest chance there is: a hair more chance is not worth twice the
    cost. Where nothing has a chance: best metric in time, then least over time, then cheapest.
    """
    most = float(outlook.chance.max())
    if most > _NO_CHANCE:
        near = outlook.chance >= question.confidence * most
        keys = _keys(question, outlook)
        return int(np.lexsort(tuple(np.where(near, key, np.inf) for key in reversed(keys)))[0])
    in_time = outlook.total_s <= outlook.limit_s
    with np.errstate(invalid="ignore", divide="ignore"):
        over = np.where(np.isfinite(outlook.limit_s), outlook.total_s / outlook.limit_s, 0.0)
    worth = np.zeros(len(over)) if outlook.metric is None else -_signed(question, outlook.metric)
    short = np.where(in_time, worth, over)
    return int(np.lexsort((outlook.cost, short, ~in_time))[0])


def frontier_of(question: Question, outlook: Outlook) -> tuple[int, ...]:
    """Rows that reach the target and that no other beats in time and cost (and in the metric, where that is the aim), by time."""
    able = np.isfinite(outlook.total_s) & (outlook.reached >= 0.5) & (outlook.passes > 0)
    index = np.flatnonzero(able)
    worth = np.zeros(len(outlook.cost))
    if outlook.metric is not None and question.target is None:
        worth = -_signed(question, outlook.metric)
    order = index[np.lexsort((worth[index], outlook.cost[index], outlook.total_s[index]))]
    kept: list[int] = []
    for i in order:
        if not any(outlook.cost[j] <= outlook.cost[i] and worth[j] <= worth[i] for j in kept):
            kept.append(int(i))
    return tuple(kept)


def _signed(question: Question, metric: FloatArray) -> FloatArray:
    return metric if question.higher_is_better else -metric


def expected(outlook: Outlook) -> tuple[FloatArray, FloatArray]:
    """Cost and time in the mean: a spread makes that higher than the middle."""
    mean = np.exp(outlook.log_sd**2 / 2)
    return outlook.cost * mean, outlook.total_s * mean


def _keys(question: Question, outlook: Outlook) -> tuple[FloatArray, ...]:
    """What is minimised, then what decides among equals."""
    cost, total = expected(outlook)
    if question.objective == "metric":
        assert outlook.metric is not None
        return -_signed(question, outlook.metric), cost, total
    return (cost, total) if question.objective == "cost" else (total, cost)
