"""A plan as one HTML file that opens offline: the question, the answer, time against cost, and every option with why it lost.

Words, rows and their order are those of the terminal (``plan_text``, ``plan_table``). There is no script. Names come from users and are escaped.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

from coadapt.report.plan_svg import chart
from coadapt.report.plan_table import cells, header, shown_rows
from coadapt.report.plan_text import (
    asked,
    headline,
    how_to_run,
    no_answer,
    run_first,
    what_epochs_are,
)
from coadapt.report.planned import Planned

#: Rows of the table; all options are in the chart.
SHOWN = 200


def render(planned: Planned) -> str:
    """The page."""
    run = how_to_run(planned)
    answers = [headline(planned)] if planned.feasible else [no_answer(planned), headline(planned)]
    notes = [note for note in (run_first(planned), what_epochs_are(planned), *planned.notes) if note]
    return _PAGE.format(
        style=_style(),
        asked=escape(asked(planned)),
        answer="".join(f"<p><b>{escape(line)}</b></p>" for line in answers),
        run=f"<pre>{escape(run)}</pre>" if run else "",
        chart=chart(planned),
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
