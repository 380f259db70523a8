"""A plan as one HTML file that opens offline: the answer, time against cost with the frontier, and every option with why it lost.

The chart is SVG written here; there is no script. Names come from users and are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

from coadapt.configure.problem import Plan, Row
from coadapt.units import format_duration

#: Rows of the table; all options are in the chart.
SHOWN = 200
_WIDTH, _HEIGHT, _MARGIN = 760, 380, 56


def render(plan: Plan, *, metric: str, unit: str, notes: Sequence[str] = (), run: str | None = None) -> str:
    """The page."""
    return _PAGE.format(
        style=_style(),
        title="Plan",
        lede=_lede(plan, metric, unit),
        run=f"<pre>{escape(run)}</pre>" if run else "",
        chart=_chart(plan, unit),
        table=_table(plan, metric),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes),
    )


@cache
def _style() -> str:
    return (files("coadapt.report") / "assets" / "report.css").read_text(encoding="utf-8")


def _lede(plan: Plan, metric: str, unit: str) -> str:
    row, option = plan.row, plan.row.option
    if plan.chosen is None:
        helps = ", or ".join(escape(each.text) for each in plan.relaxations)
        said = f"No option holds the {escape(' and '.join(plan.binding) or 'limits')} with a chance of {plan.question.confidence:.0%}."
        return said + (f" It would do {helps}." if helps else "")
    value = "" if row.metric is None else f", {escape(metric)} {row.metric.value:.4g}"
    return (
        f"<b>{option.gpus} x {escape(option.gpu_type)}, batch {option.batch:,}</b>: {format_duration(row.total_s.value)} "
        f"(8 in 10: {format_duration(row.total_s.low)} to {format_duration(row.total_s.high)}), cost {row.cost.value:,.2f} {escape(unit)}{value}. "
        f"The limits hold with {row.chance:.0%}."
    )


def _chart(plan: Plan, unit: str) -> str:
    """Cost over time, both logarithmic."""
    known = [i for i, row in enumerate(plan.rows) if _drawn(row)]
    if len(known) < 2:
        return ""
    times = [math.log(plan.rows[i].total_s.value) for i in known]
    costs = [math.log(plan.rows[i].cost.value) for i in known]
    deadline = plan.question.deadline_s
    if deadline is not None:
        times.append(math.log(deadline))
    low_t, high_t, low_c, high_c = min(times), max(times), min(costs), max(costs)

    def x(seconds: float) -> float:
        return _MARGIN + (math.log(seconds) - low_t) / max(high_t - low_t, 1e-9) * (_WIDTH - 2 * _MARGIN)

    def y(cost: float) -> float:
        return (
            _HEIGHT - _MARGIN - (math.log(cost) - low_c) / max(high_c - low_c, 1e-9) * (_HEIGHT - 2 * _MARGIN)
        )

    front = set(plan.frontier)
    parts = [_axes(low_t, high_t, low_c, high_c, unit)]
    if deadline is not None:
        at = x(deadline)
        parts.append(
            f'<line x1="{at:.1f}" y1="{_MARGIN / 2}" x2="{at:.1f}" y2="{_HEIGHT - _MARGIN}" class="limit"/>'
        )
        parts.append(
            f'<text x="{at - 4:.1f}" y="{_MARGIN / 2 + 10}" text-anchor="end">deadline {format_duration(deadline)}</text>'
        )
    line = " ".join(
        f"{x(plan.rows[i].total_s.value):.1f},{y(plan.rows[i].cost.value):.1f}"
        for i in plan.frontier
        if _drawn(plan.rows[i])
    )
    parts.append(f'<polyline points="{line}" class="front"/>')
    for i in known:
        row = plan.rows[i]
        kind = "front" if i in front else "rest"
        parts.append(_dot(row, x, y, kind, 3.5 if i in front else 2.5))
    parts.append(_dot(plan.row, x, y, "chosen", 7))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="cost over time">{"".join(parts)}</svg>'
    )


def _drawn(row: Row) -> bool:
    return math.isfinite(row.total_s.value) and row.total_s.value > 0 and row.cost.value > 0


def _dot(row: Row, x, y, kind: str, radius: float) -> str:  # type: ignore[no-untyped-def]
    about = f"{row.option.gpus} x {row.option.gpu_type}, batch {row.option.batch}: {format_duration(row.total_s.value)}, cost {row.cost.value:,.2f}"
    about += f"; {row.why}" if row.why else ""
    return (
        f'<circle cx="{x(row.total_s.value):.1f}" cy="{y(row.cost.value):.1f}" r="{radius}" class="{kind}">'
        f"<title>{escape(about)}</title></circle>"
    )


def _axes(low_t: float, high_t: float, low_c: float, high_c: float, unit: str) -> str:
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    parts = [f'<path d="M{_MARGIN} {_MARGIN / 2}V{bottom}H{right}" class="axis"/>']
    for k in range(5):
        at = _MARGIN + k / 4 * (_WIDTH - 2 * _MARGIN)
        time = format_duration(math.exp(low_t + k / 4 * (high_t - low_t)))
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{time}</text>')
        up = bottom - k / 4 * (_HEIGHT - 2 * _MARGIN)
        cost = math.exp(low_c + k / 4 * (high_c - low_c))
        parts.append(f'<text x="{_MARGIN - 6}" y="{up + 4:.1f}" text-anchor="end">{cost:,.3g}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 36}" text-anchor="end">time</text>')
    parts.append(
        f'<text x="{_MARGIN}" y="{_MARGIN / 2 - 8}" text-anchor="start">cost ({escape(unit)})</text>'
    )
    return "".join(parts)


def _table(plan: Plan, metric: str) -> str:
    order = sorted(
        range(len(plan.rows)),
        key=lambda i: (
            i != (plan.likeliest if plan.chosen is None else plan.chosen),
            -round(plan.rows[i].chance, 2),
            plan.rows[i].cost.value,
        ),
    )
    head = ("GPUs", "batch", "epochs", "time", "p10 - p90", "cost", escape(metric), "chance", "why not")
    lines = ["<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for i in order[:SHOWN]:
        row = plan.rows[i]
        value = "-" if row.metric is None or math.isnan(row.metric.value) else f"{row.metric.value:.4g}"
        cells = (
            f"{row.option.gpus} x {escape(row.option.gpu_type)}",
            f"{row.option.batch:,}",
            f"{row.passes:.3g}",
            format_duration(row.total_s.value),
            f"{format_duration(row.total_s.low)} - {format_duration(row.total_s.high)}",
            f"{row.cost.value:,.2f}",
            value,
            f"{row.chance:.0%}",
            "<b>chosen</b>" if i == plan.chosen else escape(row.why),
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    left = len(order) - SHOWN
    more = f"<p>{left:,} more options are in the chart and in --json.</p>" if left > 0 else ""
    return f"<table>{''.join(lines)}</table>{more}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{style}
.plan {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
.plan svg {{ width: 100%; font: 12px sans-serif; fill: currentColor; }}
.plan .axis, .plan polyline {{ fill: none; stroke: currentColor; opacity: .5; }}
.plan circle.rest {{ opacity: .25; }} .plan circle.front {{ fill: #2a6fb0; }} .plan circle.chosen {{ fill: #d2452d; }}
.plan .limit {{ stroke: #d2452d; stroke-dasharray: 4 3; }}
.plan table {{ width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }}
.plan td, .plan th {{ text-align: right; padding: .2rem .5rem; white-space: nowrap; }} .plan td:first-child, .plan th:first-child {{ text-align: left; }}
</style></head>
<body><main class="plan"><h1>{title}</h1><p>{lede}</p>{run}{chart}{table}<ul>{notes}</ul></main></body></html>
"""
