"""A plan in words: what was asked, the answer in one line, the table, what to run."""

from __future__ import annotations

from coadapt.report.plan_table import cells, header, metric, shown_rows
from coadapt.report.planned import Planned, told
from coadapt.units import format_chance, format_duration

#: Rows of the table, the chosen one included.
SHOWN = 12


def asked(planned: Planned) -> str:
    """The question as it was understood."""
    question = planned.plan.question
    aim = {"cost": "the least cost", "time": "the least time", "metric": f"the best {question.metric}"}
    limits = []
    if question.target is not None:
        limits.append(question.goal)
    elif question.epochs is not None and question.objective != "metric":
        limits.append(f"{question.epochs:g} epochs of work")
    if question.deadline_s is not None:
        due = planned.due()
        within = format_duration(question.deadline_s)
        limits.append(f"done in {within}, by {due}" if due else f"done in {within}")
    if question.budget is not None:
        limits.append(f"at most {question.amount(question.budget)}")
    amount = question.target is not None or question.objective != "metric"
    said = f"{aim[question.objective]}{' for' if amount else ','} {', '.join(limits)}"
    return f"asked: {said}, with a chance of {question.confidence:.0%}"


def headline(planned: Planned) -> str:
    """The answer."""
    plan, row = planned.plan, planned.plan.row
    option, question = row.option, plan.question
    passes = told(row)
    made = f"{passes:,} epochs"
    if question.stops and question.target is not None and row.passes_enough > row.passes:
        made = f"until {question.goal}, at most {passes:,} epochs"
    time = format_duration(row.total_s.value)
    if row.total_s.low < row.total_s.high:
        time += f" ({format_duration(row.total_s.low)} to {format_duration(row.total_s.high)})"
    said = f"{option.gpus} x {option.gpu_type}, batch {option.batch:,}, {made}: {time}, {question.amount(row.cost.value)}"
    if row.metric is not None and metric(row) != "-":
        said += f", {question.metric} {metric(row)}"
    said += f"; chance {format_chance(row.chance)}"
    return said if plan.chosen is not None else f"nearest: {said}"


def no_answer(planned: Planned) -> str:
    """One line: which limit binds, and what would help."""
    plan, question = planned.plan, planned.plan.question
    values = {
        "deadline": None if question.deadline_s is None else format_duration(question.deadline_s),
        "target": None if question.target is None else question.goal,
        "budget": None if question.budget is None else question.amount(question.budget),
    }
    named = [f"{limit} ({values[limit]})" if values.get(limit) else limit for limit in plan.binding]
    said = f"no option holds the {' and '.join(named) or 'limits'} with a chance of {question.confidence:.0%}"
    if plan.relaxations:
        said += "; it would do " + ", or ".join(each.text for each in plan.relaxations)
    return said


def what_epochs_are(planned: Planned) -> str | None:
    """Said where two kinds of epochs meet: those asked for, and those a script is told."""
    question = planned.plan.question
    if question.target is not None or question.epochs is None or question.objective == "metric":
        return None
    return (
        f"--epochs {question.epochs:g} is an amount of work: that of {question.epochs:g} passes over the data at batch "
        f"{planned.initial_batch}; EPOCHS is how many passes do it at each batch size, the number to tell the script"
    )


def how_to_run(planned: Planned) -> str | None:
    """The command, or in words."""
    if planned.plan.chosen is None:
        return None
    command, row = planned.command(), planned.plan.row
    option, lr = row.option, planned.lr_at(planned.plan.row.option.batch)
    rate = "" if lr is None else f", learning rate {lr:.3g}"
    if command is None:
        return f"run with: batch {option.batch:,} on {option.gpus} x {option.gpu_type}, {told(row):,} epochs{rate}"
    assert planned.run is not None
    missing = [
        f"{what}" for name, what in (("workers", f"on {option.gpus} x {option.gpu_type}"), ("epochs", f"for {told(row):,} epochs"))
        if "{" + name + "}" not in planned.run
    ]  # fmt: skip
    run = f"run with: {command}" + (f"   ({', '.join(missing)})" if missing else "")
    return f"{run}\nsubmit with: {planned.submission()}"


def run_first(planned: Planned) -> str | None:
    """The short run that pays before the launch, where there is one."""
    plan = planned.plan
    if plan.short_run is None:
        return None
    option, likely = plan.rows[plan.short_run.row].option, format_chance(plan.short_run.likely)
    said = f"worth a short run first: batch {option.batch:,} on {option.gpus} x {option.gpu_type}, whose speed nobody knows well; "
    if plan.short_run.saves is None:
        return said + f"with a chance of {likely} it would hold the limits"
    saved = "time" if plan.question.objective == "time" else "cost"
    return (
        said
        + f"with a chance of {likely} it is the better choice, {plan.short_run.saves:.0%} less {saved} in the mean"
    )


def what_to_do(planned: Planned) -> list[str]:
    """The last lines: the command, and what to run before it."""
    return [said for said in (how_to_run(planned), run_first(planned)) if said]


def text(planned: Planned) -> str:
    """All of it but the chart and the notes."""
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
