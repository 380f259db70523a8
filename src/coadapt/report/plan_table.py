"""The rows of a plan as they are shown, in a terminal and on a page alike: which, in what order, in which words."""

from __future__ import annotations

import math

from coadapt.configure.problem import Plan, Row
from coadapt.report.planned import Planned
from coadapt.units import format_chance, format_duration

#: Behind GPU types whose times are projected.
PROJECTED = "*"
CHOSEN, NEAREST = "<-- chosen", "nearest: "


def header(planned: Planned) -> list[str]:
    """Names of the columns."""
    unit = "GPU-h" if planned.unit == "GPU-hours" else planned.unit
    lr = ["LR"] if planned.lr is not None else []
    measures = ["EPOCHS", "TIME p10-p90", f"COST {unit}", planned.metric.upper(), "CHANCE", "WHY NOT"]
    return ["GPUS", "BATCH", *lr, *measures]


def cells(planned: Planned, i: int) -> list[str]:
    """One row."""
    plan, row = planned.plan, planned.plan.rows[i]
    lr = planned.lr_at(row.option.batch)
    if i == plan.chosen:
        why = CHOSEN
    else:
        why = (NEAREST if plan.chosen is None and i == plan.likeliest else "") + row.why
    return [
        gpus(planned, row),
        batch(row),
        *([f"{lr:.3g}"] if lr is not None else []),
        epochs(row),
        time(row),
        amount(row.cost.value),
        metric(row),
        format_chance(row.chance),
        why,
    ]


def gpus(planned: Planned, row: Row) -> str:
    """3 x t4."""
    mark = PROJECTED if row.option.gpu_type in planned.projected else ""
    return f"{row.option.gpus} x {row.option.gpu_type}{mark}"


def batch(row: Row) -> str:
    """4,096 = 4 x 1,024: so many backward passes of each GPU before an update."""
    extra = f" in {row.option.accumulation + 1}" if row.option.accumulation else ""
    return f"{row.option.batch:,}{extra}"


def epochs(row: Row) -> str:
    """Passes to make; where a run stops at the target, from those expected to those that may be needed."""
    if not math.isfinite(row.passes_enough):
        return "-"
    if row.passes_enough <= row.passes:
        return f"{row.passes:,.5g}"
    return f"{row.passes:,.5g}..{row.passes_enough:,.5g}"


def time(row: Row) -> str:
    """Its interval; a planner that knows none has one value."""
    low, high = format_duration(row.total_s.low), format_duration(row.total_s.high)
    return f"{low} - {high}" if row.total_s.low < row.total_s.high else high


def amount(cost: float) -> str:
    """A cost without its unit."""
    if not math.isfinite(cost):
        return "-"
    return f"{cost:,.2f}" if cost >= 0.1 or cost == 0 else f"{cost:.2g}"


def metric(row: Row) -> str:
    """Its expected value at the end."""
    return "-" if row.metric is None or math.isnan(row.metric.value) else f"{row.metric.value:.4g}"


def shown_rows(plan: Plan, most: int) -> list[int]:
    """The chosen (or nearest) row first, then of the frontier an even choice and the next best ones: those that hold the limits first, best first."""
    first = plan.likeliest if plan.chosen is None else plan.chosen
    others = sorted((i for i in range(len(plan.rows)) if i != first), key=lambda i: _rank(plan, plan.rows[i]))
    frontier = [i for i in plan.frontier if i != first]
    room = most - 4
    if len(frontier) > room > 0:
        frontier = [frontier[int(k * len(frontier) / room)] for k in range(room)]
    kept = set(frontier[: most - 1])
    for i in others:
        if len(kept) >= most - 1:
            break
        kept.add(i)
    return [first, *(i for i in others if i in kept)]


def _rank(plan: Plan, row: Row) -> tuple[float, ...]:
    question = plan.question
    holds = row.chance >= question.confidence
    value = {"cost": row.cost.value, "time": row.total_s.value}.get(question.objective)
    if value is None:
        best = 0.0 if row.metric is None or math.isnan(row.metric.value) else row.metric.value
        value = -best if question.higher_is_better else best
    # those that do not hold: the likeliest first, and of those without any chance the ones that are nearest to being in time
    missed = value if question.deadline_s is None else row.total_s.value
    return (0.0, value) if holds else (1.0, -round(row.chance, 2), missed)
