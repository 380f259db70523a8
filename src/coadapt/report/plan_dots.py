"""Cost over time as a chart of dots for a terminal, both logarithmic."""

from __future__ import annotations

import math

from coadapt.configure.problem import Row
from coadapt.report.plan_table import amount
from coadapt.report.planned import Planned
from coadapt.units import format_duration

_WIDTH, _HEIGHT = 60, 12


def drawn(row: Row) -> bool:
    """Whether a row has a place in a chart."""
    return math.isfinite(row.total_s.value) and row.total_s.value > 0 and row.cost.value > 0


def chart(planned: Planned) -> list[str]:
    """Frontier o, the rest dots, the chosen one #."""
    plan = planned.plan
    points = [(row.total_s.value, row.cost.value) for row in plan.rows if drawn(row)]
    if len(points) < 2:
        return []
    low_t, high_t = (f(math.log(t) for t, _ in points) for f in (min, max))
    low_c, high_c = (f(math.log(c) for _, c in points) for f in (min, max))
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def put(row: Row, mark: str) -> None:
        if drawn(row):
            x = round((math.log(row.total_s.value) - low_t) / max(high_t - low_t, 1e-9) * (_WIDTH - 1))
            y = round((math.log(row.cost.value) - low_c) / max(high_c - low_c, 1e-9) * (_HEIGHT - 1))
            grid[_HEIGHT - 1 - y][x] = mark

    for row in plan.rows:
        put(row, "·")
    for i in plan.frontier:
        put(plan.rows[i], "o")
    put(plan.row, "#")
    labels = [amount(math.exp(high_c)), *[""] * (_HEIGHT - 2), amount(math.exp(low_c))]
    width = max(len(label) for label in labels)
    mark = "chosen" if plan.chosen is not None else "nearest"
    lines = [f"  cost in {planned.unit}  (# {mark}, o no other is both faster and cheaper, · the rest)"]
    lines += [f"  {label:>{width}} |{''.join(line)}" for label, line in zip(labels, grid, strict=True)]
    first, last = format_duration(math.exp(low_t)), format_duration(math.exp(high_t))
    lines.append(f"  {'':>{width}} +{'-' * _WIDTH}")
    lines.append(f"  {'':>{width}}  {first}{last:>{_WIDTH - len(first)}} time")
    return lines
