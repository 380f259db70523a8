"""A plan as one HTML file that opens offline, and its chart of cost over time, as SVG and as dots for a terminal.

The page has the question, the answer, the chart, and every option with the reason why it was not chosen. Words, rows and
their order are those of the terminal (``text_output``). There is no script. Names come from users and are escaped.

Both axes of the charts are logarithmic. In the SVG every option is a dot with its description, the frontier is a line
and the deadline another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from html import escape
from importlib.resources import files

from coadapt.planning.answer import Planned
from coadapt.planning.problem import Row
from coadapt.planning.text_output import (
    amount,
    asked,
    cells,
    header,
    headline,
    how_to_run,
    no_answer,
    run_first,
    shown_rows,
    what_epochs_are,
)
from coadapt.units import format_duration

_WIDTH, _HEIGHT = 60, 12


def drawn(row: Row) -> bool:
    """Whether a row has a position in a chart."""
    return math.isfinite(row.total_s.value) and row.total_s.value > 0 and row.cost.value > 0


def dot_chart(planned: Planned) -> list[str]:
    """The chart for a terminal: o for the frontier, # for the chosen option, dots for the others."""
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
    lines = [
        f"  cost in {planned.unit}  (# {mark}, o frontier: no other option is both faster and cheaper, · other options)"
    ]
    lines += [f"  {label:>{width}} |{''.join(line)}" for label, line in zip(labels, grid, strict=True)]
    first, last = format_duration(math.exp(low_t)), format_duration(math.exp(high_t))
    lines.append(f"  {'':>{width}} +{'-' * _WIDTH}")
    lines.append(f"  {'':>{width}}  {first}{last:>{_WIDTH - len(first)}} time")
    return lines


_SVG_WIDTH, _SVG_HEIGHT, _MARGIN = 760, 380, 56


def svg_chart(planned: Planned) -> str:
    """The chart as SVG; an empty text if there are fewer than two options to draw."""
    plan = planned.plan
    known = [i for i, row in enumerate(plan.rows) if drawn(row)]
    if len(known) < 2:
        return ""
    times = [math.log(plan.rows[i].total_s.value) for i in known]
    costs = [math.log(plan.rows[i].cost.value) for i in known]
    deadline = plan.question.deadline_s
    if deadline is not None:
        times.append(math.log(deadline))
    low_t, high_t, low_c, high_c = min(times), max(times), min(costs), max(costs)

    def x(seconds: float) -> float:
        return _MARGIN + (math.log(seconds) - low_t) / max(high_t - low_t, 1e-9) * (_SVG_WIDTH - 2 * _MARGIN)

    def y(cost: float) -> float:
        up = (math.log(cost) - low_c) / max(high_c - low_c, 1e-9)
        return _SVG_HEIGHT - _MARGIN - up * (_SVG_HEIGHT - 2 * _MARGIN)

    front = set(plan.frontier)
    parts = [_axes(low_t, high_t, low_c, high_c, planned.unit)]
    if deadline is not None:
        parts.append(_limit(x(deadline), f"deadline {format_duration(deadline)}"))
    points = [plan.rows[i] for i in plan.frontier if drawn(plan.rows[i])]
    line = " ".join(f"{x(row.total_s.value):.1f},{y(row.cost.value):.1f}" for row in points)
    parts.append(f'<polyline points="{line}" class="front"/>')
    for i in known:
        kind, radius = ("front", 3.5) if i in front else ("rest", 2.5)
        parts.append(_dot(planned, plan.rows[i], x, y, kind, radius))
    if drawn(plan.row):
        parts.append(_dot(planned, plan.row, x, y, "chosen", 7))
    return f'<svg viewBox="0 0 {_SVG_WIDTH} {_SVG_HEIGHT}" role="img" aria-label="cost over time">{"".join(parts)}</svg>'


def _limit(at: float, label: str) -> str:
    line = (
        f'<line x1="{at:.1f}" y1="{_MARGIN / 2}" x2="{at:.1f}" y2="{_SVG_HEIGHT - _MARGIN}" class="limit"/>'
    )
    return line + f'<text x="{at - 4:.1f}" y="{_MARGIN / 2 + 10}" text-anchor="end">{label}</text>'


def _dot(
    planned: Planned,
    row: Row,
    x: Callable[[float], float],
    y: Callable[[float], float],
    kind: str,
    radius: float,
) -> str:
    option, cost = row.option, planned.plan.question.amount(row.cost.value)
    about = f"{option.gpus} x {option.gpu_type}, batch {option.batch}: {format_duration(row.total_s.value)}, {cost}"
    about += f"; {row.why}" if row.why else ""
    return (
        f'<circle cx="{x(row.total_s.value):.1f}" cy="{y(row.cost.value):.1f}" r="{radius}" class="{kind}">'
        f"<title>{escape(about)}</title></circle>"
    )


def _axes(low_t: float, high_t: float, low_c: float, high_c: float, unit: str) -> str:
    bottom, right = _SVG_HEIGHT - _MARGIN, _SVG_WIDTH - _MARGIN
    parts = [f'<path d="M{_MARGIN} {_MARGIN / 2}V{bottom}H{right}" class="axis"/>']
    for k in range(5):
        at = _MARGIN + k / 4 * (_SVG_WIDTH - 2 * _MARGIN)
        time = format_duration(math.exp(low_t + k / 4 * (high_t - low_t)))
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{time}</text>')
        up = bottom - k / 4 * (_SVG_HEIGHT - 2 * _MARGIN)
        cost = math.exp(low_c + k / 4 * (high_c - low_c))
        parts.append(f'<text x="{_MARGIN - 6}" y="{up + 4:.1f}" text-anchor="end">{cost:,.3g}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 36}" text-anchor="end">time</text>')
    label = escape(unit)
    parts.append(f'<text x="{_MARGIN}" y="{_MARGIN / 2 - 8}" text-anchor="start">cost ({label})</text>')
    return "".join(parts)


#: Rows of the table; all options are in the chart.
SHOWN = 200


def plan_page(planned: Planned) -> str:
    """The HTML page of a plan."""
    run = how_to_run(planned)
    answers = [headline(planned)] if planned.feasible else [no_answer(planned), headline(planned)]
    notes = [note for note in (run_first(planned), what_epochs_are(planned), *planned.notes) if note]
    return _PAGE.format(
        style=_style(),
        asked=escape(asked(planned)),
        answer="".join(f"<p><b>{escape(line)}</b></p>" for line in answers),
        run=f"<pre>{escape(run)}</pre>" if run else "",
        chart=svg_chart(planned),
        table=_table(planned),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes),
    )


@cache
def _style() -> str:
    return (files("coadapt.report") / "assets" / "report.css").read_text(encoding="utf-8")


def _table(planned: Planned) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in header(planned)) + "</tr>"]
    shown = shown_rows(planned.plan, SHOWN)
    for i in shown:
        mark = ' class="chosen"' if i == planned.plan.chosen else ""
        lines.append(
            f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(planned, i)) + "</tr>"
        )
    left = len(planned.plan.rows) - len(shown)
    more = f"<p>{left:,} more options are in the chart and in --json.</p>" if left > 0 else ""
    return f"<table>{''.join(lines)}</table>{more}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Plan</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{style}
.plan {{ max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }}
.plan svg {{ width: 100%; font: 12px sans-serif; fill: currentColor; }}
.plan .axis, .plan polyline {{ fill: none; stroke: currentColor; opacity: .5; }}
.plan circle.rest {{ opacity: .25; }} .plan circle.front {{ fill: #2a6fb0; }} .plan circle.chosen {{ fill: #d2452d; }}
.plan .limit {{ stroke: #d2452d; stroke-dasharray: 4 3; }}
.plan table {{ width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }}
.plan tr.chosen {{ font-weight: bold; }}
.plan td, .plan th {{ text-align: right; padding: .2rem .5rem; white-space: nowrap; }}
.plan td:first-child, .plan th:first-child, .plan td:last-child, .plan th:last-child {{ text-align: left; }}
</style></head>
<body><main class="plan"><h1>Plan</h1><p>{asked}</p>{answer}{run}{chart}{table}<ul>{notes}</ul></main></body></html>
"""
