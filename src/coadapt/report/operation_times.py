"""Charts of where a run's time went: bars by type of operation and the curve of their sum, as text and as a page.

After figure 2 of Fathom (Adolf et al., IISWC 2016): how many types of operation make most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from coadapt.wire.tool_messages import OperationShare, RunProfiled

#: What "most of the time" means.
MOST_TIME = 0.9
_ROW_PX, _NAME_PX, _BAR_PX, _RIGHT_PX = 22, 300, 480, 120


@dataclass(frozen=True, slots=True)
class OperationBar:
    """One type of operation; ``share`` of all time, ``cumulative`` with all larger ones."""

    name: str
    seconds: float
    calls: int
    share: float
    cumulative: float

    @property
    def short_name(self) -> str:
        """The name, cut to the width that a terminal has for it."""
        return _cut(self.name, 32)


def operation_bars(operations: Sequence[OperationShare]) -> list[OperationBar]:
    """Returns one bar per type of operation, largest first."""
    largest_first = sorted(operations, key=lambda each: -each.seconds)
    total_s = sum(each.seconds for each in largest_first)
    found, sofar = [], 0.0
    for each in largest_first:
        sofar += each.seconds
        share = each.seconds / total_s
        # rounding in the sum must not leave the last one short of all
        found.append(OperationBar(each.name, each.seconds, each.calls, share, min(sofar / total_s, 1.0)))
    return found


def types_for_most(found: Sequence[OperationBar]) -> int:
    """How many of the largest make ``MOST_TIME`` of the time."""
    return next((i for i, bar in enumerate(found, 1) if bar.cumulative >= MOST_TIME), len(found))


def largest_operations(found: Sequence[OperationBar], top: int) -> list[OperationBar]:
    """The ``top`` largest, and the others as one bar at the end."""
    rest = found[top:]
    if len(rest) < 2:
        return list(found)
    others = OperationBar(
        name=f"({len(rest)} others)",
        seconds=sum(bar.seconds for bar in rest),
        calls=sum(bar.calls for bar in rest),
        share=sum(bar.share for bar in rest),
        cumulative=1.0,
    )
    return [*found[:top], others]


def operation_line(bar: OperationBar, width: int) -> str:
    """``####   *   |``: its share, the sum so far, and where most of the time is."""
    text = list("#" * round(width * bar.share) + " " * width)[:width]
    text[min(round(width * MOST_TIME), width - 1)] = "|"
    text[min(round(width * bar.cumulative), width - 1)] = "*"
    return "".join(text)


def operation_headline(found: Sequence[OperationBar], answer: RunProfiled) -> str:
    """How many types of operation make most of the time, in one line."""
    most, cut = types_for_most(found), ", ended at the time limit" if answer.cut else ""
    return (
        f"{most} of {len(found)} types of operation make {MOST_TIME:.0%} of the time on the {answer.device} "
        f"({answer.wall_s:.1f} s{cut})"
    )


def operation_dict(answer: RunProfiled) -> dict[str, Any]:
    """Plain data with stable keys: ``coadapt profile run --json``."""
    found = operation_bars(answer.operations)
    rows = [
        {
            "operation": bar.name,
            "seconds": bar.seconds,
            "calls": bar.calls,
            "share": bar.share,
            "cumulative": bar.cumulative,
        }
        for bar in found
    ]
    head = {
        "wall_s": answer.wall_s,
        "device": answer.device,
        "cut": answer.cut,
        "operations_for_90": types_for_most(found),
    }
    return {**head, "operations": rows}


def operation_page(answer: RunProfiled, top: int, *, script: str) -> str:
    """One HTML file that opens offline: the chart of the ``top`` largest types as SVG, and the table of all types."""
    found = operation_bars(answer.operations)
    return chart_page(found, top, script=script, headline=operation_headline(found, answer))


def chart_page(found: Sequence[OperationBar], top: int, *, script: str, headline: str) -> str:
    """Returns one HTML page that opens offline: the chart as SVG, and the table of all types.

    Args:
        found: Types of operation with their time, largest first.
        top: Number of types that the chart shows.
        script: Name of the script, the title of the page.
        headline: Result in one sentence, above the chart.
    """
    cells = "".join(
        f"<tr><td>{escape(bar.name)}</td><td>{bar.share:.1%}</td><td>{bar.cumulative:.1%}</td>"
        f"<td>{bar.seconds:.3f} s</td><td>{bar.calls:,}</td></tr>\n"
        for bar in found
    )
    return _PAGE.format(
        title=escape(script),
        headline=escape(headline),
        chart=operation_svg(largest_operations(found, top)),
        cells=cells,
    )


def operation_svg(found: Sequence[OperationBar]) -> str:
    """Bars, the curve of their sum, and a dashed line at most of the time."""
    height, right = _ROW_PX * len(found) + 26, _NAME_PX + _BAR_PX
    parts, points = [], []
    for row, bar in enumerate(found):
        middle = _ROW_PX * row + _ROW_PX // 2 + 20
        wide = max(_BAR_PX * bar.share, 1)
        points.append(f"{_NAME_PX + _BAR_PX * bar.cumulative:.1f},{middle}")
        parts.append(
            f'<text x="{_NAME_PX - 8}" y="{middle + 4}" text-anchor="end">{escape(_cut(bar.name, 40))}</text>'
            f'<rect x="{_NAME_PX}" y="{middle - 8}" width="{wide:.1f}" height="16" class="bar"/>'
            f'<text x="{right + 8}" y="{middle + 4}">{bar.share:.1%}, sum {bar.cumulative:.1%}</text>'
        )
    most = _NAME_PX + _BAR_PX * MOST_TIME
    parts.append(f'<line x1="{most}" x2="{most}" y1="16" y2="{height}" class="most"/>')
    parts.append(f'<text x="{most}" y="11" text-anchor="middle">{MOST_TIME:.0%}</text>')
    parts.append(f'<polyline points="{" ".join(points)}" class="sum"/>')
    size = f"0 0 {right + _RIGHT_PX} {height}"
    label = "share of each type of operation and the sum of the largest"
    return f'<svg viewBox="{size}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 2] + ".."


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: where the time goes</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; font-size: 12px; }}
svg text {{ fill: currentColor; }}
.bar {{ fill: #4878a8; }}
.sum {{ fill: none; stroke: #c8642c; stroke-width: 2; }}
.most {{ stroke: currentColor; stroke-dasharray: 4 3; opacity: 0.6; }}
table {{ border-collapse: collapse; margin-top: 1.5rem; }}
td, th {{ padding: 0.1rem 0.8rem; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
</style>
<h1>{title}</h1>
<p>{headline}</p>
{chart}
<table>
<tr><th>operation</th><th>share</th><th>sum</th><th>time</th><th>calls</th></tr>
{cells}</table>
</html>
"""
