"""From an outlook and a choice to the whole answer: every row and why it lost, the frontier, what binds and what would help."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from coadapt.configure.outlook import Z80, Columns, Outlook
from coadapt.configure.problem import Option, Plan, Question, Relaxation, Row
from coadapt.predict._base import Estimate, FloatArray
from coadapt.units import format_duration


def best_of(question: Question, outlook: Outlook) -> int | None:
    """The best option among those that hold the limits with the confidence asked for; None if none does."""
    holds = outlook.chance >= question.confidence
    if not holds.any():
        return None
    keys = _keys(question, outlook)
    order = np.lexsort(tuple(np.where(holds, key, np.inf) for key in reversed(keys)))
    return int(order[0])


def likeliest_of(question: Question, outlook: Outlook) -> int:
    """The option nearest to holding the limits: highest chance, then best metric in time, then least over time, then cheapest."""
    in_time = outlook.total_s <= outlook.limit_s
    with np.errstate(invalid="ignore", divide="ignore"):
        over = np.where(np.isfinite(outlook.limit_s), outlook.total_s / outlook.limit_s, 0.0)
    worth = np.zeros(len(over)) if outlook.metric is None else -_signed(question, outlook.metric)
    short = np.where(in_time, worth, over)
    return int(np.lexsort((outlook.cost, short, ~in_time, -np.round(outlook.chance, 6)))[0])


def picked(planner: str, question: Question, columns: Columns, outlook: Outlook, pick: int) -> Plan:
    """The plan of a planner that takes ``pick`` whatever its chances; not chosen where it does not hold the limits."""
    holds = bool(outlook.chance[pick] >= question.confidence)
    return answered(planner, question, columns, outlook, pick if holds else None, likeliest=pick)


def answered(
    planner: str,
    question: Question,
    columns: Columns,
    outlook: Outlook,
    chosen: int | None,
    *,
    likeliest: int | None = None,
) -> Plan:
    """The plan in full."""
    if likeliest is None:
        likeliest = likeliest_of(question, outlook) if chosen is None else chosen
    why = _reasons(question, columns, outlook, chosen)
    total_factor = np.exp(Z80 * outlook.log_sd)
    rows = tuple(
        _row(option, i, outlook, float(total_factor[i]), why[i]) for i, option in enumerate(columns.options)
    )
    binding, relaxations = ((), ()) if chosen is not None else _help(question, columns, outlook)
    return Plan(
        planner=planner,
        question=question,
        rows=rows,
        chosen=chosen,
        likeliest=likeliest,
        frontier=frontier_of(question, outlook),
        binding=binding,
        relaxations=relaxations,
    )


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


def _keys(question: Question, outlook: Outlook) -> tuple[FloatArray, ...]:
    """What is minimised, then what decides among equals. Expected values: a spread makes the mean higher than the middle."""
    mean = np.exp(outlook.log_sd**2 / 2)
    cost, total = outlook.cost * mean, outlook.total_s * mean
    if question.objective == "metric":
        assert outlook.metric is not None
        return -_signed(question, outlook.metric), cost, total
    return (cost, total) if question.objective == "cost" else (total, cost)


def _row(option: Option, i: int, outlook: Outlook, factor: float, why: str) -> Row:
    total, cost = float(outlook.total_s[i]), float(outlook.cost[i])
    metric = None
    if outlook.metric is not None and outlook.metric_sd is not None:
        value, half = float(outlook.metric[i]), Z80 * float(outlook.metric_sd[i])
        metric = Estimate(value=value, low=max(value - half, 0.0), high=value + half)
    return Row(
        option=option,
        passes=float(outlook.passes[i]),
        passes_enough=float(outlook.passes_enough[i]),
        total_s=Estimate(value=total, low=total / factor, high=total * factor),
        cost=Estimate(value=cost, low=cost / factor, high=cost * factor),
        metric=metric,
        chance=float(outlook.chance[i]),
        why=why,
    )


def _reasons(question: Question, columns: Columns, outlook: Outlook, chosen: int | None) -> list[str]:
    """One short phrase per option."""
    z = float(ndtri(question.confidence))
    surely = outlook.total_s * np.exp(z * outlook.log_sd)
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    budget = math.inf if question.budget is None else question.budget
    texts = []
    for i in range(len(columns.options)):
        if i == chosen:
            texts.append("")
        elif outlook.reached[i] < question.confidence:
            texts.append("no pass fits" if outlook.passes[i] <= 0 else "may never reach the target")
        elif surely[i] > deadline:
            if outlook.total_s[i] > deadline:
                texts.append(f"too slow by {format_duration(outlook.total_s[i] - deadline)}")
            else:
                texts.append(f"in time with {outlook.chance[i]:.0%} only")
        elif outlook.cost[i] > budget:
            texts.append(f"over the budget by {outlook.cost[i] - budget:,.2f}")
        elif outlook.chance[i] < question.confidence:
            texts.append(f"within the limits with {outlook.chance[i]:.0%} only")
        elif chosen is not None:
            texts.append(_worse(question, outlook, i, chosen))
        else:
            texts.append("")
    return texts


def _worse(question: Question, outlook: Outlook, i: int, chosen: int) -> str:
    if question.objective == "metric" and outlook.metric is not None:
        less = abs(float(outlook.metric[chosen] - outlook.metric[i]))
        if less > 0:
            return f"{less:.3g} worse"
    values = outlook.total_s if question.objective == "time" else outlook.cost
    what = "slower" if question.objective == "time" else "dearer"
    share = float(values[i] / values[chosen] - 1) if values[chosen] > 0 else 0.0
    return f"{share:.1%} {what}" if share > 0.0005 else "as good, less sure"


def _help(
    question: Question, columns: Columns, outlook: Outlook
) -> tuple[tuple[str, ...], tuple[Relaxation, ...]]:
    """Which limits forbid everything, and the nearest deadline and budget that would not. A target needs forecasts: see ``relax``."""
    z = float(ndtri(question.confidence))
    able = outlook.reached >= question.confidence
    if question.objective == "metric" or not able.any():
        return (("target",) if question.target is not None else ("deadline",)), ()
    # the time at which an option holds with the confidence left after the chance that the target is missed
    z_left = ndtri(np.clip(question.confidence / np.maximum(outlook.reached, 1e-9), 0.5, 1 - 1e-9))
    surely = np.where(able, outlook.total_s * np.exp(np.maximum(z, z_left) * outlook.log_sd), np.inf)
    cost = surely * columns.price_s
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    budget = math.inf if question.budget is None else question.budget
    found: list[Relaxation] = []
    in_budget, in_time = cost <= budget, surely <= deadline
    if question.deadline_s is not None and in_budget.any():
        value = float(surely[in_budget].min())
        found.append(Relaxation("deadline", value, f"at {format_duration(math.ceil(value))}"))
    if question.budget is not None and in_time.any():
        value = float(cost[in_time].min())
        found.append(Relaxation("budget", value, f"for {value:,.2f}"))
    binding = tuple(each.limit for each in found) or ("deadline", "budget")
    if question.confidence > 0.5 and 0.5 <= float(outlook.chance.max()) < question.confidence:
        best = math.floor(100 * float(outlook.chance.max())) / 100
        found.append(Relaxation("confidence", best, f"with a chance of {best:.0%}"))
    return binding, tuple(found)
