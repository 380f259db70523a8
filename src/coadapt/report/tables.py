"""The table of a report: numbers down and runs across, or, of more than four runs, runs down in one table per group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import msgspec

from coadapt.report.summary import Ratio, Summary
from coadapt.units import format_duration

Number = float | int | None
#: More runs than this stand below each other.
ACROSS = 4


@dataclass(frozen=True, slots=True)
class Column:
    """The numbers of one run by the keys of ``Summary``; keys that nobody knows may be missing."""

    name: str
    numbers: Mapping[str, Number]
    #: The run's place in the charts; None if it is in none.
    colour: int | None = None

    @classmethod
    def of(cls, name: str, summary: Summary, colour: int | None = None) -> Column:
        """A run's summary, or the means of several."""
        return cls(name, msgspec.structs.asdict(summary), colour)

    @property
    def label(self) -> str:
        """Its name with the colour it has in the charts."""
        swatch = "" if self.colour is None else f'<i class="swatch c{self.colour % 8}"></i>'
        return swatch + escape(self.name)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


class _Row(NamedTuple):
    key: str
    label: str
    show: Callable[[float], str]
    #: -1: smaller is better, 1: larger is better, 0: neither.
    better: int = 0
    ratio: bool = False


_GROUPS: tuple[tuple[str, tuple[_Row, ...]], ...] = (
    (
        "Completion",
        (
            _Row("num_finished", "jobs finished", _count, 1),
            _Row("num_unfinished", "jobs not finished", _count, -1),
            _Row("avg_jct_s", "average JCT", format_duration, -1, True),
            _Row("vs_bound", "average JCT to its lower bound", _decimal, -1),
            _Row("p50_jct_s", "median JCT", format_duration, -1, True),
            _Row("p90_jct_s", "90th percentile", format_duration, -1, True),
            _Row("p99_jct_s", "99th percentile", format_duration, -1, True),
            _Row("slowest10_jct_s", "slowest tenth, mean", format_duration, -1, True),
            _Row("makespan_s", "makespan", format_duration, -1, True),
            _Row("avg_wait_s", "average wait", format_duration, -1, True),
            _Row("p90_wait_s", "wait, 90th percentile", format_duration, -1, True),
        ),
    ),
    (
        "Use of the cluster",
        (
            _Row("gpu_hours", "GPU hours held", _count, -1, True),
            _Row("utilisation", "utilisation", _share),
            _Row("avg_efficiency", "statistical efficiency", _share),
            _Row("num_restarts", "restarts", _count, -1),
            _Row("restart_share", "held time in changes", _share, -1),
        ),
    ),
    (
        "Finish-time fairness",
        (
            # none is the best: each policy's rho is measured against its own time alone
            _Row("rho_mean", "mean rho", _decimal),
            _Row("rho_max", "largest rho", _decimal),
            _Row("rho_unfair_share", "jobs with rho above 1", _share),
        ),
    ),
    (
        "Cost of deciding",
        (
            _Row("decisions", "decisions", _count),
            _Row("decision_ms", "CPU per decision, ms", _decimal),
            _Row("cpu_s", "CPU of the run", format_duration),
        ),
    ),
)


def summary_table(columns: Sequence[Column], ratios: Mapping[str, Ratio], reference: str) -> str:
    """All numbers of all runs; the best of each in bold, ratios to the reference beside it."""
    several = len(columns) > 1
    base = next((column for column in columns if column.name == reference), columns[0])
    inner = (
        _runs_down(columns, ratios, base) if len(columns) > ACROSS else _runs_across(columns, ratios, base)
    )
    about = ""
    if several:
        about = f"The best of each number is bold; × is relative to {escape(base.name)}."
    return f'<h2>Summary</h2><p class="about">{about}</p><div class="scroll">{inner}</div>'


def _runs_across(columns: Sequence[Column], ratios: Mapping[str, Ratio], base: Column) -> str:
    several = len(columns) > 1
    # every cell keeps room for a ratio, so that numbers stand under each other
    gap = "<small></small>" if several else ""
    head = "".join(f'<th scope="col">{column.label}{gap}</th>' for column in columns)
    body = []
    for title, rows in _GROUPS:
        lines = []
        for row in _known(rows, columns):
            best = _best(row, columns)
            cells = "".join(_cell(row, column, base, best, several) for column in columns)
            lines.append(f'<tr><th scope="row">{row.label}</th>{cells}</tr>')
            if row.key == "avg_jct_s" and several and ratios:
                cells = "".join(f"<td>{_interval(column, ratios, base)}</td>" for column in columns)
                lines.append(f'<tr><th scope="row">&emsp;same jobs, 95% interval</th>{cells}</tr>')
        if lines:
            span = len(columns) + 1
            body.append(f'<tr class="group"><th colspan="{span}" scope="rowgroup">{title}</th></tr>')
            body += lines
    return (
        f'<table class="summary{"" if several else " one"}">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _runs_down(columns: Sequence[Column], ratios: Mapping[str, Ratio], base: Column) -> str:
    tables = []
    for title, rows in _GROUPS:
        known = _known(rows, columns)
        if not known:
            continue
        best = {row.key: _best(row, columns) for row in known}
        versus = title == "Completion" and bool(ratios)
        head = "".join(f'<th scope="col">{row.label}</th>' for row in known)
        head += '<th scope="col">average JCT, same jobs, 95% interval</th>' if versus else ""
        body = ""
        for column in columns:
            if all(column.numbers.get(row.key) is None for row in known):
                continue
            cells = "".join(_cell(row, column, base, best[row.key], False) for row in known)
            cells += f"<td>{_interval(column, ratios, base)}</td>" if versus else ""
            body += f'<tr><th scope="row">{column.label}</th>{cells}</tr>'
        tables.append(
            f'<table class="summary down"><caption>{title}</caption>'
            f"<thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    return "".join(tables)


def _known(rows: Sequence[_Row], columns: Sequence[Column]) -> list[_Row]:
    return [row for row in rows if any(column.numbers.get(row.key) is not None for column in columns)]


def _best(row: _Row, columns: Sequence[Column]) -> Number:
    """The best value; None where no direction is better, or where all are alike."""
    known = [value for column in columns if (value := column.numbers.get(row.key)) is not None]
    if not row.better or min(known) == max(known):
        return None
    return max(known) if row.better > 0 else min(known)


def _cell(row: _Row, column: Column, base: Column, best: Number, with_ratio: bool) -> str:
    value, reference = column.numbers.get(row.key), base.numbers.get(row.key)
    text = "–" if value is None else row.show(value)
    if best is not None and value == best:
        text = f"<b>{text}</b>"
    if not with_ratio:
        return f"<td>{text}</td>"
    ratio = f"{value / reference:.2f}×" if column is not base and row.ratio and value and reference else ""
    return f"<td>{text}<small>{ratio}</small></td>"


def _interval(column: Column, ratios: Mapping[str, Ratio], base: Column) -> str:
    ratio = ratios.get(column.name)
    if ratio is None or column is base:
        return ""
    return f"{ratio.ratio:.2f}× [{ratio.low:.2f}, {ratio.high:.2f}]"
