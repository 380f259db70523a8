"""Cost over time as SVG, both logarithmic: every option a dot that says what it is, the frontier a line, the deadline another."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from coadapt.configure.problem import Row
from coadapt.report.plan_dots import drawn
from coadapt.report.planned import Planned
from coadapt.units import format_duration

_WIDTH, _HEIGHT, _MARGIN = 760, 380, 56


def chart(planned: Planned) -> str:
    """The drawing; nothing where there are not two options to draw."""
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
        return _MARGIN + (math.log(seconds) - low_t) / max(high_t - low_t, 1e-9) * (_WIDTH - 2 * _MARGIN)

    def y(cost: float) -> float:
        up = (math.log(cost) - low_c) / max(high_c - low_c, 1e-9)
        return _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN)

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
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="cost over time">{"".join(parts)}</svg>'
    )


def _limit(at: float, label: str) -> str:
    line = f'<line x1="{at:.1f}" y1="{_MARGIN / 2}" x2="{at:.1f}" y2="{_HEIGHT - _MARGIN}" class="limit"/>'
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
    label = escape(unit)
    parts.append(f'<text x="{_MARGIN}" y="{_MARGIN / 2 - 8}" text-anchor="start">cost ({label})</text>')
    return "".join(parts)
