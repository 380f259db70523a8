"""Template filters that format values for the pages. They return plain text; the templates escape it automatically."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Mapping
from typing import Any

from coadapt.model.interval import Interval
from coadapt.units import format_duration
from coadapt.wire.api import JobLine

#: Colours of jobs; see ``.c0`` and on in the style sheet.
COLOURS = 12
_NUMBER = re.compile(r"-(\d+)$", re.ASCII)
NONE = "–"
#: A cost below it is not worth its figures.
_LEAST_HOURS = 0.001
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def visible(value: Any) -> Any:
    """Text without letters that hide or turn others: a right-to-left mark in a name shows as what it is."""
    if not isinstance(value, str) or hasattr(value, "__html__") or (value.isascii() and value.isprintable()):
        return value
    return "".join(_visible_letter(letter) for letter in value)


def _visible_letter(letter: str) -> str:
    if letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) > 0xFF else f"\\x{ord(letter):02x}"


def colour(job: str) -> int:
    """A job's own; jobs that come after each other differ, as their ids are numbered."""
    match = _NUMBER.search(job)
    return (int(match[1][-6:]) if match else zlib.crc32(job.encode(errors="replace"))) % COLOURS


def cells(jobs: Mapping[str, int], gpus: int, free: int) -> list[str]:
    """What is drawn for each GPU of a node: the job's id, "" for a free one, "-" for one that nobody may have."""
    held = [job for job, count in jobs.items() for _ in range(count)]
    shown = [*held, *[""] * free]
    return (shown + ["-"] * (gpus - len(shown)))[: max(gpus, len(held))]


def duration(seconds: float | None) -> str:
    """Formats a duration, for example 3h 20m."""
    return NONE if seconds is None else format_duration(max(seconds, 0.0))


def ago(at: float | None, now: float) -> str:
    """Formats a moment relative to now."""
    if at is None:
        return NONE
    return f"in {duration(at - now)}" if at > now else f"{duration(now - at)} ago"


def span(interval: Interval, now: float) -> str:
    """Formats the range of a moment as durations from now."""
    low = duration(interval.low - now) if interval.low > now else "now"
    return f"{low} to {'open end' if interval.high is None else duration(interval.high - now)}"


def tick(seconds: int) -> str:
    """Formats a duration of a chart's axis in the one unit of which it is a whole number."""
    size, unit = next((each for each in _UNITS if not seconds % each[0]), (1, "s"))
    return f"{seconds // size}{unit}"


def percent(share: float | None) -> str:
    """Formats a share as a percentage, for example 42%."""
    return NONE if share is None else f"{100 * share:.0f}%"


def number(value: float | None) -> str:
    """Formats a number with three significant figures and thousands separators."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def cost(line: JobLine, currency: str) -> str:
    """Formats a cost, in money if there are prices, otherwise in GPU-hours."""
    if line.cost is not None:
        return f"{line.cost:,.2f} {currency}".strip()
    hours = line.gpu_s / 3600
    if 0 < hours < _LEAST_HOURS:
        return f"< {_LEAST_HOURS:g} GPU-h"
    return f"{hours:,.1f} GPU-h" if hours >= 10 else f"{hours:.2g} GPU-h" if hours else NONE


def phase(line: JobLine) -> str:
    """One word, and what a user would ask next."""
    if line.quarantined:
        return "quarantined"
    if line.on_hold and line.phase == "PAUSED":
        return "on hold"
    return line.phase.lower()
