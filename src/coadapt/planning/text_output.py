"""A plan as text: the question, the answer in one line, the table of options, the command to run.

``header``, ``cells`` and ``shown_rows`` define the table for the terminal and for the HTML page alike: which rows are
shown, in what order and in which words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coadapt.planning.answer import Planned, epochs_to_run
from coadapt.planning.problem import Plan, Row
from coadapt.units import format_chance, format_duration

#: Behind GPU types whose times are projected.
PROJECTED = "*"
CHOSEN, NEAREST = "<-- chosen", "closest: "


def header(planned: Planned) -> list[str]:
    """Names of the columns."""
    unit = "GPU-h" if planned.unit == "GPU-hours" else planned.unit
    lr = ["LR"] if planned.lr is not None else []
    measures = ["EPOCHS", "TIME (80%)", f"COST {unit}", planned.metric.upper(), "CHANCE", "WHY NOT"]
    return ["GPUS", "BATCH", "PER GPU", *lr, *measures]


def cells(planned: Planned, i: int) -> list[str]:
    """Cells of row ``i``."""
    plan, row = planned.plan, planned.plan.rows[i]
    lr = planned.lr_at(row.option.batch)
    if i == plan.chosen:
        why = CHOSEN
    else:
        why = (NEAREST if plan.chosen is None and i == plan.likeliest else "") + row.why
    return [
        gpus(planned, row),
        f"{row.option.batch:,}",
        per_gpu(row),
        *([f"{lr:.3g}"] if lr is not None else []),
        epochs(row),
        time(row),
        amount(row.cost.value),
        metric(row),
        format_chance(row.chance),
        why,
    ]


def gpus(planned: Planned, row: Row) -> str:
    """GPUs of a row: 3 x t4."""
    mark = PROJECTED if row.option.gpu_type in planned.projected else ""
    return f"{row.option.gpus} x {row.option.gpu_type}{mark}"


def per_gpu(row: Row) -> str:
    """Examples per GPU: 171, or with gradient accumulation 512 x 2 (examples per backward pass x passes before an update)."""
    passes = row.option.accumulation + 1
    each = f"{math.ceil(row.option.batch / row.option.gpus / passes):,}"
    return each if passes == 1 else f"{each} x {passes}"


def epochs(row: Row) -> str:
    """Passes to make; for a run that stops at the target, from the expected to the most that may be needed."""
    if not math.isfinite(row.passes_enough):
        return "-"
    if row.passes_enough <= row.passes:
        return f"{row.passes:,.5g}"
    return f"{row.passes:,.5g}..{row.passes_enough:,.5g}"


def time(row: Row) -> str:
    """Interval of the time of a row; one value if the planner states no interval."""
    low, high = format_duration(row.total_s.low), format_duration(row.total_s.upper)
    return f"{low} - {high}" if row.total_s.low < row.total_s.upper else high


def amount(cost: float) -> str:
    """A cost without its unit."""
    if not math.isfinite(cost):
        return "-"
    return f"{cost:,.2f}" if cost >= 0.1 or cost == 0 else f"{cost:.2g}"


def metric(row: Row) -> str:
    """Expected metric of a row at the end of its run."""
    return "-" if row.metric is None or math.isnan(row.metric.value) else f"{row.metric.value:.4g}"


def shown_rows(plan: Plan, most: int) -> list[int]:
    """Rows to show: the chosen (or nearest) one, an even selection of the frontier, and the next best ones.

    Rows that satisfy the limits come first, the best first; at most ``most`` rows.
    """
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


#: Rows of the table, the chosen one included.
SHOWN = 12


def asked(planned: Planned) -> str:
    """The question as it was understood."""
    question = planned.plan.question
    aim = {"cost": "lowest cost", "time": "shortest time", "metric": f"best {question.metric}"}
    limits = []
    if question.target is not None:
        limits.append(question.goal)
    elif question.epochs is not None and question.objective != "metric":
        limits.append(f"the work of {question.epochs:g} epochs")
    if question.deadline_s is not None:
        due = planned.due()
        within = format_duration(question.deadline_s)
        limits.append(f"within {within} (by {due})" if due else f"within {within}")
    if question.budget is not None:
        limits.append(f"at most {question.amount(question.budget)}")
    amount = question.target is not None or question.objective != "metric"
    said = f"{aim[question.objective]}{' for' if amount else ','} {', '.join(limits)}"
    return f"Question: {said}, with a chance of at least {question.confidence:.0%}"


def headline(planned: Planned) -> str:
    """The answer in one line."""
    plan, row = planned.plan, planned.plan.row
    option, question = row.option, plan.question
    passes = epochs_to_run(row)
    made = f"{passes:,} epochs"
    if question.stops and question.target is not None and row.passes_enough > row.passes:
        made = f"until {question.goal}, at most {passes:,} epochs"
    time = format_duration(row.total_s.value)
    if row.total_s.low < row.total_s.upper:
        time += f" (80% interval {format_duration(row.total_s.low)} to {format_duration(row.total_s.upper)})"
    said = f"{option.gpus} x {option.gpu_type}, batch {option.batch:,}, {made}: {time}, {question.amount(row.cost.value)}"
    if row.metric is not None and metric(row) != "-":
        said += f", {question.metric} {metric(row)}"
    said += f"; chance {format_chance(row.chance)}"
    return said if plan.chosen is not None else f"closest option: {said}"


def no_answer(planned: Planned) -> str:
    """One line: which limit binds, and what would help."""
    plan, question = planned.plan, planned.plan.question
    values = {
        "deadline": None if question.deadline_s is None else format_duration(question.deadline_s),
        "target": None if question.target is None else question.goal,
        "budget": None if question.budget is None else question.amount(question.budget),
    }
    named = [f"{limit} ({values[limit]})" if values.get(limit) else limit for limit in plan.binding]
    said = f"no option meets the {' and '.join(named) or 'limits'} with a chance of {question.confidence:.0%}"
    if plan.relaxations:
        said += "; possible " + ", or ".join(each.text for each in plan.relaxations)
    return said


def what_epochs_are(planned: Planned) -> str | None:
    """Explanation shown where epochs of work and passes that the script makes are different numbers."""
    question = planned.plan.question
    if question.target is not None or question.epochs is None or question.objective == "metric":
        return None
    return (
        f"--epochs {question.epochs:g} is an amount of work: {question.epochs:g} passes over the data at batch "
        f"{planned.initial_batch}. EPOCHS is the number of passes that do the same work at each batch size; give it to your script"
    )


def how_to_run(planned: Planned) -> str | None:
    """The command to run; a description if there is no command."""
    if planned.plan.chosen is None:
        return None
    command, row = planned.command(), planned.plan.row
    option, lr = row.option, planned.lr_at(planned.plan.row.option.batch)
    rate = "" if lr is None else f", learning rate {lr:.3g}"
    if command is None:
        return f"run with: batch {option.batch:,} on {option.gpus} x {option.gpu_type}, {epochs_to_run(row):,} epochs{rate}"
    assert planned.run is not None
    missing = [
        f"{what}" for name, what in (("workers", f"on {option.gpus} x {option.gpu_type}"), ("epochs", f"for {epochs_to_run(row):,} epochs"))
        if "{" + name + "}" not in planned.run
    ]  # fmt: skip
    run = f"run with: {command}" + (f"   ({', '.join(missing)})" if missing else "")
    return f"{run}\nsubmit with: {planned.submission()}"


def run_first(planned: Planned) -> str | None:
    """The short run that pays before the launch, if there is one."""
    plan = planned.plan
    if plan.short_run is None:
        return None
    option, likely = plan.rows[plan.short_run.row].option, format_chance(plan.short_run.likely)
    said = f"worth a short run first: batch {option.batch:,} on {option.gpus} x {option.gpu_type}, because its speed is uncertain: "
    if plan.short_run.saves is None:
        return said + f"with a chance of {likely} it meets the limits"
    saved = "time" if plan.question.objective == "time" else "cost"
    return (
        said
        + f"with a chance of {likely} it is the better choice; expected saving {plan.short_run.saves:.0%} of the {saved}"
    )


def what_to_do(planned: Planned) -> list[str]:
    """The last lines: the command, and the short run before it."""
    return [said for said in (how_to_run(planned), run_first(planned)) if said]


@dataclass(frozen=True, slots=True)
class PlanText:
    """A plan in words and cells, for a terminal or a page to lay out."""

    question: str
    headline: str
    header: list[str]
    #: The options worth showing, best first.
    rows: list[list[str]]
    #: The command, and what to run before it.
    advice: list[str]
    notes: list[str]


def plan_text(planned: Planned) -> PlanText:
    """The whole plan in words and cells except the chart, and why there is no answer (``no_answer``)."""
    return PlanText(
        question=asked(planned),
        headline=headline(planned),
        header=header(planned),
        rows=[cells(planned, i) for i in shown_rows(planned.plan, SHOWN)],
        advice=what_to_do(planned),
        notes=[note for note in (what_epochs_are(planned), *planned.notes) if note],
    )


def text(planned: Planned) -> str:
    """The whole plan as text except the chart and the notes."""
    rows = [header(planned), *(cells(planned, i) for i in shown_rows(planned.plan, SHOWN))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [asked(planned), headline(planned) if planned.feasible else no_answer(planned), ""]
    for row in rows:
        first, *others = [
            f"{cell:<{width}}" if at in (0, len(row) - 1) else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(["", first, *others]).rstrip())
    last = what_to_do(planned)
    return "\n".join([*lines, *(["", *last] if last else [])])
