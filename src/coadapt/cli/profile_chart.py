"""Where a run's time went, drawn: bars by type of operation and the curve of their sum, as text and as a page.

After figure 2 of Fathom (Adolf et al., IISWC 2016): how many types of operation make most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from coadapt.wire.trace import OperationShare

#: What "most of the time" means.
MOST = 0.9
_ROW_PX, _NAME_PX, _BAR_PX, _RIGHT_PX = 22, 300, 480, 120


@dataclass(frozen=True, slots=True)
class Bar:
    """One type of operation; ``share`` of all time, ``cumulative`` with all larger ones."""

    name: str
    seconds: float
    calls: int
    share: float
    cumulative: float


def bars(operations: Sequence[OperationShare]) -> list[Bar]:
    """Largest first."""
    largest_first = sorted(operations, key=lambda each: -each.seconds)
    total_s = sum(each.seconds for each in largest_first)
    found, sofar = [], 0.0
    for each in largest_first:
        sofar += each.seconds
        share = each.seconds / total_s
        # rounding in the sum must not leave the last one short of all
        found.append(Bar(each.name, each.seconds, each.calls, share, min(sofar / total_s, 1.0)))
    return found


def types_for_most(found: Sequence[Bar]) -> int:
    """How many of the largest make ``MOST`` of the time."""
    return next((i for i, bar in enumerate(found, 1) if bar.cumulative >= MOST), len(found))


def shortened(found: Sequence[Bar], top: int) -> list[Bar]:
    """The ``top`` largest, and the others as one bar at the end."""
    rest = found[top:]
    if len(rest) < 2:
        return list(found)
    others = Bar(
        name=f"({len(rest)} others)",
        seconds=sum(bar.seconds for bar in rest),
        calls=sum(bar.calls for bar in rest),
        share=sum(bar.share for bar in rest),
        cumulative=1.0,
    )
    return [*found[:top], others]


def line(bar: Bar, width: int) -> str:
    """``####   *   |``: its share, the sum so far, and where most of the time is."""
    text = list("#" * round(width * bar.share) + " " * width)[:width]
    text[min(round(width * MOST), width - 1)] = "|"
    text[min(round(width * bar.cumulative), width - 1)] = "*"
    return "".join(text)


def page(found: Sequence[Bar], top: int, *, script: str, headline: str) -> str:
    """One HTML file that opens offline: the chart as SVG, and the table of all types."""
    cells = "".join(
        f"<tr><td>{escape(bar.name)}</td><td>{bar.share:.1%}</td><td>{bar.cumulative:.1%}</td>"
        f"<td>{bar.seconds:.3f} s</td><td>{bar.calls:,}</td></tr>\n"
        for bar in found
    )
    return _PAGE.format(
        title=escape(script), headline=escape(headline), chart=svg(shortened(found, top)), cells=cells
    )


def svg(found: Sequence[Bar]) -> str:
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
    most = _NAME_PX + _BAR_PX * MOST
    parts.append(f'<line x1="{most}" x2="{most}" y1="16" y2="{height}" class="most"/>')
    parts.append(f'<text x="{most}" y="11" text-anchor="middle">{MOST:.0%}</text>')
    parts.append(f'<polyline points="{" ".join(points)}" class="sum"/>')
    size = f"0 0 {right + _RIGHT_PX} {height}"
    label = "share of each type of operation and the sum of the largest"
    return f'<svg viewBox="{size}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 2] + ".."


def short_name(name: str) -> str:
    """As a terminal has room for."""
    return _cut(name, 32)


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
