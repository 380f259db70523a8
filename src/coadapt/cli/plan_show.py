"""How a plan looks in a terminal: the table, the frontier as a chart of dots, what binds, what to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from coadapt.cli import show
from coadapt.cli.plan_ask import Planned
from coadapt.configure.problem import Plan, Row
from coadapt.units import format_duration

#: Rows of the table, the chosen one included.
SHOWN = 12
_WIDTH, _HEIGHT = 60, 12


def shown_rows(plan: Plan, most: int = SHOWN) -> list[int]:
    """The chosen (or likeliest) row, the frontier thinned evenly, then the next best ones."""
    first = plan.likeliest if plan.chosen is None else plan.chosen
    frontier = [i for i in plan.frontier if i != first]
    kept = frontier
    if len(frontier) > most - 4:
        step = len(frontier) / (most - 4)
        kept = [frontier[int(k * step)] for k in range(most - 4)]
    near = sorted(
        (i for i in range(len(plan.rows)) if i != first and i not in kept),
        key=lambda i: (-round(plan.rows[i].chance, 2), plan.rows[i].cost.value),
    )
    rest = near[: max(most - 1 - len(kept), 0)]
    return [first, *sorted([*kept, *rest], key=lambda i: plan.rows[i].total_s.value)]


def say(planned: Planned) -> None:
    """All of it."""
    plan, question = planned.plan, planned.plan.question
    money = bool(question.prices)
    header = [
        "GPUS",
        "BATCH",
        *(["LR"] if planned.lr is not None else []),
        "EPOCHS",
        "TIME p10-p90",
        "COST",
        planned.metric.upper(),
        "CHANCE",
        "CHOSEN",
    ]
    rows = [_cells(planned, plan.rows[i], i == plan.chosen, money) for i in shown_rows(plan)]
    show.say(_headline(planned), bold=True)
    show.say()
    show.say_table(header, rows)
    if len(plan.rows) > len(rows):
        show.say(f"  ({len(rows)} of {len(plan.rows)} options; --json has all of them)", dim=True)
    show.say()
    for line in chart(plan):
        show.say(line)
    command = run_command(planned)
    if command:
        show.say()
        show.say(f"run with: {command}")
    for note in planned.notes:
        show.note(note)


def _headline(planned: Planned) -> str:
    plan, row = planned.plan, planned.plan.row
    if plan.chosen is None:
        return no_answer(plan)
    option = row.option
    cost = f"{row.cost.value:,.2f}" if plan.question.prices else f"{row.cost.value:,.2f} GPU-hours"
    parts = [
        f"{option.gpus} x {option.gpu_type}, batch {option.batch}: {format_duration(row.total_s.value)}, {cost}"
    ]
    if plan.question.target is not None or plan.question.objective == "metric":
        parts.append(f"{planned.metric} {_metric(row)}")
    return ", ".join(parts) + f" (limits hold with {chance(row.chance)})"


def no_answer(plan: Plan) -> str:
    """One line: which limit binds, and what would help."""
    binding = " and ".join(plan.binding) or "limits"
    said = f"no option holds the {binding} with a chance of {plan.question.confidence:.0%}"
    if plan.relaxations:
        said += "; it would do " + ", or ".join(each.text for each in plan.relaxations)
    return said


def _cells(planned: Planned, row: Row, chosen: bool, money: bool) -> list[str]:
    option = row.option
    accumulation = f" x{option.accumulation + 1}" if option.accumulation else ""
    lr = planned.lr_at(option.batch)
    epochs = (
        f"{row.passes:.4g}"
        if row.passes_enough <= row.passes
        else f"{row.passes:.4g}..{row.passes_enough:.4g}"
    )
    mark = "<--" if chosen else row.why
    return [
        f"{option.gpus} x {option.gpu_type}",
        f"{option.batch:,}{accumulation}",
        *([f"{lr:.3g}"] if lr is not None else []),
        epochs,
        f"{format_duration(row.total_s.low)} - {format_duration(row.total_s.high)}",
        f"{row.cost.value:,.2f}",
        _metric(row),
        chance(row.chance),
        mark,
    ]


def chance(value: float) -> str:
    """Nothing that is not known for certain is called so."""
    return ">99%" if value > 0.99 else f"{value:.0%}"


def _metric(row: Row) -> str:
    return "-" if row.metric is None or math.isnan(row.metric.value) else f"{row.metric.value:.4g}"


def chart(plan: Plan) -> list[str]:
    """Cost over time: frontier o, the rest dots, the chosen one #."""
    points = [
        (row.total_s.value, row.cost.value)
        for row in plan.rows
        if math.isfinite(row.total_s.value) and row.total_s.value > 0 and row.cost.value > 0
    ]
    if len(points) < 2:
        return []
    low_t, high_t = (f(math.log(t) for t, _ in points) for f in (min, max))
    low_c, high_c = (f(math.log(c) for _, c in points) for f in (min, max))
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def put(row: Row, mark: str) -> None:
        if not (math.isfinite(row.total_s.value) and row.total_s.value > 0 and row.cost.value > 0):
            return
        x = round((math.log(row.total_s.value) - low_t) / max(high_t - low_t, 1e-9) * (_WIDTH - 1))
        y = round((math.log(row.cost.value) - low_c) / max(high_c - low_c, 1e-9) * (_HEIGHT - 1))
        grid[_HEIGHT - 1 - y][x] = mark

    for row in plan.rows:
        put(row, "·")
    for i in plan.frontier:
        put(plan.rows[i], "o")
    put(plan.row, "#")
    top, bottom = math.exp(high_c), math.exp(low_c)
    labels = [f"{top:,.2f}", *[""] * (_HEIGHT - 2), f"{bottom:,.2f}"]
    width = max(len(label) for label in labels)
    lines = [
        f"  cost  (# {'chosen' if plan.chosen is not None else 'nearest'}, o no other is both faster and cheaper, · the rest)"
    ]
    lines += [f"  {label:>{width}} |{''.join(cells)}" for label, cells in zip(labels, grid, strict=True)]
    first, last = format_duration(math.exp(low_t)), format_duration(math.exp(high_t))
    lines.append(f"  {'':>{width}} +{'-' * _WIDTH}")
    lines.append(f"  {'':>{width}}  {first}{last:>{_WIDTH - len(first)}} time")
    return lines


def run_command(planned: Planned) -> str | None:
    """The training command with the plan filled in."""
    if planned.run is None or planned.plan.chosen is None:
        return None
    row = planned.plan.row
    lr = planned.lr_at(row.option.batch)
    return filled(
        planned.run,
        batch=row.option.batch,
        workers=row.option.replicas,
        epochs=math.ceil(row.passes_enough),
        lr=lr,
        seed=0,
    )


def filled(template: str, *, batch: int, workers: int, epochs: int, lr: float | None, seed: int) -> str:
    """Placeholders replaced; other braces are the user's own."""
    values = {"batch_size": batch, "workers": workers, "epochs": epochs, "seed": seed}
    if lr is not None:
        values["lr"] = lr  # type: ignore[assignment]
    for name, value in values.items():
        template = template.replace(
            "{" + name + "}", f"{value:g}" if isinstance(value, float) else str(value)
        )
    return template


def plain(planned: Planned) -> dict[str, Any]:
    """Everything, as plain data with stable keys."""
    plan = planned.plan

    def one(i: int) -> dict[str, Any]:
        row = plan.rows[i]
        found: dict[str, Any] = msgspec.to_builtins(row)
        option = found.pop("option")
        lr = planned.lr_at(row.option.batch)
        return {
            **option,
            "gpus": row.option.gpus,
            **({"lr": lr} if lr is not None else {}),
            **found,
            "chosen": i == plan.chosen,
        }

    first: Sequence[int] = range(len(plan.rows))
    return {
        "feasible": plan.chosen is not None,
        "planner": plan.planner,
        "metric_name": planned.metric,
        "cost_unit": planned.unit,
        "chosen": None if plan.chosen is None else one(plan.chosen),
        "nearest": one(plan.likeliest),
        "binding": list(plan.binding),
        "relaxations": msgspec.to_builtins(plan.relaxations),
        "frontier": [one(i) for i in plan.frontier],
        "rows": [_finite(one(i)) for i in first],
        "run": run_command(planned),
        "notes": list(planned.notes),
    }


def _finite(value: Any) -> Any:
    """Infinite and missing numbers as null: JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
