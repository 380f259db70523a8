"""From an outlook and a choice to the whole answer: every row and why it lost, what binds and what would help."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from coadapt.configure.decide import frontier_of, likeliest_of
from coadapt.configure.outlook import Z80, Columns, Outlook
from coadapt.configure.problem import Option, Plan, Question, Row
from coadapt.configure.relax import helped
from coadapt.predict._base import Estimate
from coadapt.units import format_chance, format_duration


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
    # a planner that takes one option whatever its chances is helped by what helps that one
    only = likeliest
    if likeliest is None:
        likeliest = likeliest_of(question, outlook) if chosen is None else chosen
    why = _reasons(question, columns, outlook, chosen)
    total_factor = np.exp(Z80 * outlook.log_sd)
    rows = tuple(
        _row(question, option, i, outlook, float(total_factor[i]), why[i])
        for i, option in enumerate(columns.options)
    )
    binding, relaxations = ((), ()) if chosen is not None else helped(question, columns, outlook, only)
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
        passes_expected=None
        if question.target is None or outlook.expected is None
        else float(outlook.expected[i]),
    )


def _reasons(question: Question, columns: Columns, outlook: Outlook, chosen: int | None) -> list[str]:
    """One short phrase per option."""
    z = float(ndtri(question.confidence))
    surely = outlook.total_s * np.exp(z * outlook.log_sd)
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    budget = math.inf if question.budget is None else question.budget

    def unsure(i: int) -> str:
        # the one chance there is of a row: that all its limits hold
        return f"chance {format_chance(float(outlook.chance[i]))}, not {question.confidence:.0%}"

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
                texts.append(f"may be late: {unsure(i)}")
        elif outlook.cost[i] > budget:
            texts.append(f"over the budget by {question.amount(outlook.cost[i] - budget)}")
        elif outlook.chance[i] < question.confidence:
            texts.append(f"may miss a limit: {unsure(i)}")
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
