"""Units as people write them: durations, sizes. Inside, everything is seconds and bytes."""

from __future__ import annotations

import math
import re

from coadapt.errors import InputError

_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NUMBER = r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)"


def parse_duration(text: str) -> float:
    """Seconds in "90", "90s", "1.5h", "1h30m" or "2d"."""
    parts = re.findall(_NUMBER, text.strip())
    if not parts or re.sub(_NUMBER, "", text).strip():
        raise InputError(f"{text!r} is not a duration; write for example 90s, 15m, 1.5h, 1h30m, 2d")
    total = 0.0
    for number, unit in parts:
        if unit.lower() not in _SECONDS:
            raise InputError(f"unknown unit {unit!r} in duration {text!r}; use ms, s, m, h, d or w")
        total += float(number) * _SECONDS[unit.lower()]
    if not math.isfinite(total):
        raise InputError(f"{text[:40]!r}... is not a duration: it is too long")
    return total


def parse_bytes(text: str) -> int:
    """Bytes in "24GB", "64G" or "512MiB"."""
    match = re.fullmatch(_NUMBER, text.strip())
    if not match or match[2].lower() not in _BYTES:
        raise InputError(f"{text!r} is not a size; write for example 24GB or 512MiB")
    size = float(match[1]) * _BYTES[match[2].lower()]
    if not math.isfinite(size):
        raise InputError(f"{text[:40]!r}... is not a size: it is too large")
    return int(size)


def format_duration(seconds: float) -> str:
    """Format a duration by its two largest units: 42s, 12m 5s, 3h 20m, 2d 4h."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    pairs = [(days, "d"), (hours, "h"), (minutes, "m"), (secs, "s")]
    while pairs[0][0] == 0 and len(pairs) > 1:
        pairs.pop(0)
    return " ".join(f"{n}{u}" for n, u in pairs[:2] if n or u == pairs[0][1])


def format_chance(value: float) -> str:
    """Format a probability in whole percents from <1% to >99%: it never looks certain or impossible."""
    return ">99%" if value > 0.99 else "<1%" if value < 0.01 else f"{math.floor(100 * value + 1e-9)}%"


def ceil_duration(seconds: float) -> float:
    """Round a duration up to the next one that ``format_duration`` writes exactly."""
    unit = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1 if seconds >= 10 else 0.1
    return math.ceil(seconds / unit - 1e-9) * unit
