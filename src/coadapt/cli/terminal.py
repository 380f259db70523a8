"""Formats and prints results: text, tables, JSON and CSV on standard output; colour on a terminal only."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from coadapt.errors import CoadaptError
from coadapt.units import format_duration

if TYPE_CHECKING:
    from coadapt.report import Summary


def wants_colour(stream: TextIO) -> bool:
    """True on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


#: Sequences that a terminal obeys: commands with parameters, titles and other strings up to their end, the rest; then
#: single control characters, and those that change the direction of text.
_ESCAPES = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"
    "|\x1b[\\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\\\)?"
    "|\x1b[ -/]*[0-~]?"
    "|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def without_escapes(text: str) -> str:
    """Returns the text of somebody else as a terminal may show it; line ends, tabs and carriage returns stay."""
    return _ESCAPES.sub("", text)


class OutputError(CoadaptError):
    """Writing to standard output failed, for example because the disk is full."""


def echo(text: str, *, nl: bool = True, color: bool | None = None) -> None:
    """Print text on standard output; raises a BrokenPipeError if the reader has closed the pipe."""
    try:
        click.echo(text, nl=nl, color=color)
    except BrokenPipeError:
        raise
    except OSError as error:
        # the interpreter would try, and complain, once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OutputError(f"cannot write to standard output: {error.strerror}") from None


def say(text: str = "", *, bold: bool = False, dim: bool = False) -> None:
    """Print one paragraph on standard output."""
    styled = wants_colour(sys.stdout) and (bold or dim)
    echo(click.style(text, bold=bold or None, dim=dim or None) if styled else text, color=styled or None)


def duration(value: float) -> str:
    """Format a duration: 2h 13m."""
    return format_duration(value)


def count(value: float) -> str:
    """Format a count: 12,345."""
    return f"{value:,.0f}"


def share(value: float) -> str:
    """Format a share: 87.2%."""
    return f"{value:.1%}"


def decimal(value: float) -> str:
    """Format a number with about three significant digits, never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def shown(value: float | None, form: Callable[[float], str]) -> str:
    """Format ``value`` by ``form``; a dash if it is unknown."""
    return "-" if value is None else form(value)


#: The summary, in groups: key, label, format.
ROWS: tuple[tuple[tuple[str, str, Callable[[float], str]], ...], ...] = (
    (
        ("avg_jct_s", "average JCT", duration),
        ("p50_jct_s", "median JCT", duration),
        ("p90_jct_s", "90th percentile", duration),
        ("p99_jct_s", "99th percentile", duration),
        ("slowest10_jct_s", "slowest tenth, mean", duration),
        ("makespan_s", "makespan", duration),
        ("avg_wait_s", "average wait", duration),
        ("p90_wait_s", "wait, 90th percentile", duration),
    ),
    (
        ("gpu_hours", "GPU-hours held", count),
        ("utilisation", "utilisation", share),
        ("avg_efficiency", "statistical efficiency", share),
        ("num_restarts", "restarts", count),
        ("restart_share", "GPU time in starts and restarts", share),
    ),
    (
        ("rho_mean", "finish-time fairness rho, mean", decimal),
        ("rho_max", "finish-time fairness rho, worst", decimal),
        ("rho_unfair_share", "jobs with rho above 1", share),
    ),
    (("num_deadlines", "jobs with a deadline", count), ("num_deadlines_missed", "deadlines missed", count)),
    (
        ("decisions", "decisions", count),
        ("decision_ms", "CPU per decision, ms", decimal),
        ("cpu_s", "CPU of the run", duration),
    ),
)


#: Shown only where a job has one.
_DEADLINES = frozenset(("num_deadlines", "num_deadlines_missed"))


def summary_lines(summary: Summary) -> list[str]:
    """The figures of one run, one per line; unknown figures are left out."""
    blocks: list[list[tuple[str, str]]] = []
    for group in ROWS:
        known = [
            (label, form(getattr(summary, key)))
            for key, label, form in group
            if getattr(summary, key) is not None and (summary.num_deadlines or key not in _DEADLINES)
        ]
        if known:
            blocks.append(known)
    names = max(len(label) for block in blocks for label, _ in block)
    values = max(len(value) for block in blocks for _, value in block)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += [f"  {label:<{names}}  {value:>{values}}" for label, value in block]
    return lines


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of a table; the first ``left`` columns are left-aligned, the others right-aligned.

    If the terminal is too narrow for all columns, the last ones are left out and named in a final line. A file or a
    pipe gets all columns.
    """
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000
    while len(widths) > left + 1 and 2 + sum(widths) + 2 * (len(widths) - 1) > room:
        widths.pop()
    lines = []
    for row in (header, *rows):
        cells = [
            f"{cell:<{width}}" if at < left else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    if len(widths) < len(header):
        left_out = ", ".join(header[len(widths) :])
        lines.append(f"  (terminal too narrow for: {left_out})")
    return lines


def say_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table."""
    first, *rest = table(header, rows, left=left)
    say(first, dim=True)
    for line in rest:
        say(line)


def facts(pairs: Mapping[str, str]) -> list[str]:
    """Lines with a name and its value, aligned."""
    names = max((len(name) for name in pairs), default=0)
    return [f"  {name:<{names}}  {value}" for name, value in pairs.items()]


def say_json(answer: Any) -> None:
    """Print plain data or a struct as indented JSON."""
    import msgspec

    echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def say_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with the same keys as CSV."""
    import csv
    import io

    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    echo(stream.getvalue(), nl=False)
