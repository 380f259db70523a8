"""Numbers, durations, dates and metrics as training logs write them. All patterns match text of bounded length."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

#: A whole number, perhaps with separators; longer ones are none of ours, and a part of one would be another number.
COUNT = r"(\d{1,3}(?:,\d{3}){1,5}(?![\d,])|\d{1,18}(?!\d))"
NUMBER = r"(\d{1,12}(?:\.\d{0,12})?(?:[eE][-+]?\d{1,3})?)"
#: 1:02:03, 02:03, 1 day, 2:03:04
CLOCK = r"((?:\d{1,4} days?, )?(?:\d{1,5}:)?\d{1,4}:\d\d(?:\.\d{1,6})?)"
UNIT_S = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "": 1.0,
    None: 1.0,
}
VALIDATION = re.compile(
    r"\b(val|valid|validat\w*|eval\w*|test\w*|sanity|predict\w*|download\w*|infer\w*)\b", re.I
)
NOT_METRICS = frozenset(
    (
        *("epoch", "epochs", "step", "steps", "iter", "iters", "iteration", "batch", "it", "time", "eta"),
        *("global_step", "_step", "_runtime", "_timestamp", "train_time", "step_avg", "max_epoch", "wall"),
    )
)
_METRIC = re.compile(
    r"\b([A-Za-z][\w/@-]{0,40})\s{0,2}[:=]\s{0,2}(-?(?:\d{1,12}\.?\d{0,17}(?:[eE][-+]?\d{1,3})?|nan|inf))(?![\w:/])"
)
_NAMED = re.compile(
    r"\b(\w{0,30}(?:loss|acc|accuracy|error|ppl|f1))\s{1,3}(-?\d{1,12}(?:\.\d{1,12})?|nan)\b", re.I
)
_HAS_BARE = re.compile(r"(?:loss|acc|accuracy|error|ppl|f1)\s", re.I)
_DATE = re.compile(
    r"(?:(\d{4})[-/](\d\d)[-/](\d\d)|(\d\d)[-/](\d\d)[-/](\d{4})|\[(\d\d)/(\d\d)|\b[IWE](\d\d)(\d\d))"
    r"[T ,]{1,2}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?"
)
_TIME_OF_DAY = re.compile(
    r"^[\w.]{0,12}[\W_]{0,2}(?:[\w.]{1,12}:){0,2}\W{0,2}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\b"
)
#: Dates without a year get this one: only differences count.
_SOME_YEAR = 2000


def count(text: str) -> int:
    """The whole number in a text that ``COUNT`` matched."""
    return int(text.replace(",", ""))


def seconds(text: str) -> float:
    """Seconds of a text that ``CLOCK`` matched."""
    days, _, rest = text.rpartition(" ")
    found = 0.0
    for part in rest.split(":"):
        found = 60 * found + float(part)
    return found + (86400.0 * int(days.split(" ")[0]) if days else 0.0)


def stamp(line: str) -> float | None:
    """When the line was written: from a date and time, or a time of day, in its head; None if it has none."""
    head = line[:96]
    if ":" not in head:
        return None
    if found := _DATE.search(head):
        year, month, day = _date(found)
        zone = found[15]
        if zone in (None, "Z"):
            zone = "+00:00"
        elif len(zone) == 5:
            zone = f"{zone[:3]}:{zone[3:]}"
        try:
            text = f"{year}-{month}-{day}T{found[11]}:{found[12]}:{found[13]}{zone}"
            whole = datetime.fromisoformat(text).astimezone(UTC).timestamp()
        except (ValueError, OverflowError):
            return None
        return whole + float(f"0.{found[14] or 0}")
    if found := _TIME_OF_DAY.match(head):
        return int(found[1]) * 3600.0 + int(found[2]) * 60.0 + int(found[3]) + float(f"0.{found[4] or 0}")
    return None


def _date(found: re.Match[str]) -> tuple[str, str, str]:
    if found[1]:
        return found[1], found[2], found[3]
    if found[6]:
        return found[6], found[4], found[5]
    return str(_SOME_YEAR), found[7] or found[9], found[8] or found[10]


def metrics(text: str) -> dict[str, float]:
    """Named numbers in a text that are no counters and no times."""
    found: dict[str, float] = {}
    bare = _NAMED.findall(text)[:40] if _HAS_BARE.search(text) else ()
    for name, value in (*bare, *_METRIC.findall(text)[:40]):
        if name.lower() not in NOT_METRICS:
            found[name] = float(value)
    return found


def number(value: object) -> float | None:
    """A finite number, perhaps written as a text; None otherwise."""
    found = value_of(value)
    return found if found is not None and math.isfinite(found) else None


def value_of(value: object) -> float | None:
    """A number as it was logged; a metric may be nan, which is reported as such."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
