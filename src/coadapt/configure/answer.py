"""From an outlook and a choice to the whole answer: every row and why it lost, what binds and what would help."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

from coadapt.configure.decide import frontier_of, likeliest_of
from coadapt.configure.outlook import Z80, Columns, Outlook
from coadapt.configure.problem import Option, Plan, Question, Relaxation, Row
from coadapt.predict._base import Estimate
from coadapt.units import format_duration


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
        _row(question, option, i, outlook, float(total_factor[i]), why[i])
        for i, option in enumerate(columns.options)
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


def _row(question: Question, option: Option, i: int, outlook: Outlook, factor: float, why: str) -> Row:
    total, cost = float(outlook.total_s[i]), float(outlook.cost[i])
    metric = None
    if outlook.metric is not None and outlook.metric_sd is not None:
        value, half = float(outlook.metric[i]), Z80 * float(outlook.metric_sd[i])
        if question.target is not None and outlook.reached[i] >= 0.5:
            # the passes are those at which the target is expected: rounding must not show less
            value = max(value, question.target) if question.higher_is_better else min(value, question.target)
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
                in_time = ndtr(math.log(deadline / outlook.total_s[i]) / max(outlook.log_sd[i], 1e-9))
                texts.append(f"in time with {in_time:.0%} only")
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
