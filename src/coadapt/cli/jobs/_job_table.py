"""Formats the live cluster: moments, intervals, one row of a job."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from coadapt.cli import terminal
from coadapt.client import ENDED
from coadapt.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coadapt.model import Interval
    from coadapt.wire import JobLine

_DAY_S = 86400
HEADER = ("JOB", "STATE", "GPUS", "BATCH", "PROGRESS", "ETA", "COST", "WHY")


def moment(at: float, now: float | None = None) -> str:
    """A moment in local time: 14:05 today, else with its date."""
    now = time.time() if now is None else now
    near = time.strftime("%Y-%m-%d", time.localtime(at)) == time.strftime("%Y-%m-%d", time.localtime(now))
    return time.strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M", time.localtime(at))


def ago(at: float, now: float | None = None) -> str:
    """How long it is since, or until."""
    left = (time.time() if now is None else now) - at
    return f"{format_duration(left)} ago" if left >= 0 else f"in {format_duration(-left)}"


def until(eta: Interval | None, now: float | None = None) -> str:
    """Time left with its range: 2h 5m (1h 40m - 3h)."""
    if eta is None:
        return "-"
    now = time.time() if now is None else now
    left, low = (format_duration(max(value - now, 0.0)) for value in (eta.value, eta.low))
    high = "?" if eta.high is None else format_duration(max(eta.high - now, 0.0))
    return f"{left} ({low} - {high})"


def gpus(line: JobLine) -> str:
    """4 t4."""
    if not line.gpus:
        return "-"
    return f"{line.gpus} {line.gpu_type}" if line.gpu_type not in ("", "gpu") else str(line.gpus)


def cost(line: JobLine, currency: str = "") -> str:
    """Money where there are prices, else GPU-hours."""
    if line.cost is not None:
        return f"{line.cost:,.2f}" + (f" {currency}" if currency else "")
    return f"{line.gpu_s / 3600:.2f} GPU-h"


def percent(share: float) -> str:
    """Formats a share of work; 100% only where all of it is done."""
    return f"{math.floor(100 * share + 1e-9)}%"


def why(line: JobLine) -> str:
    """The reason for the present state; of a failed job, how it failed."""
    return line.why or "-"


def row(line: JobLine, now: float | None = None, currency: str = "") -> list[str]:
    """One row of ``ps``."""
    if line.state in ENDED:
        ends = "-" if line.finished_at is None else ago(line.finished_at, now)
    elif line.finishing:
        ends = "finishing"
    else:
        ends = until(line.eta, now)
    late = "!" if line.late is not None and line.late > 0.5 and line.state not in ENDED else ""
    return [
        line.job,
        line.state,
        gpus(line),
        terminal.shown(line.batch, terminal.count),
        terminal.shown(line.progress, percent),
        ends + late,
        cost(line, currency),
        why(line),
    ]


def job_table(lines: Sequence[JobLine], now: float | None = None, currency: str = "") -> None:
    """Prints ``ps``. WHY comes last and is cut to the terminal, never the columns before it."""
    import shutil
    import sys

    rows = [row(line, now, currency) for line in lines]
    if sys.stdout.isatty():
        width = shutil.get_terminal_size((80, 24)).columns
        taken = sum(max(len(each[at]) for each in (HEADER, *rows)) + 2 for at in range(len(HEADER) - 1)) + 2
        room = max(width - taken, 12)
        for each in rows:
            each[-1] = each[-1] if len(each[-1]) <= room else each[-1][: room - 1] + "…"
    text_columns(HEADER, rows, right=(2, 3, 4, 6))


def text_columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """A table whose last column is free text."""
    widths = [max(len(each[at]) for each in (header, *rows)) for at in range(len(header))]
    for number, each in enumerate((header, *rows)):
        cells = [
            f"{cell:>{width}}" if at in right else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(each, widths, strict=True))
        ]
        terminal.say(("  " + "  ".join(cells)).rstrip(), dim=number == 0)
