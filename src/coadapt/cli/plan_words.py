"""What users write in ``coadapt plan``: deadlines, targets, GPUs, ranges, money; each becomes a value or one clear line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

from coadapt.errors import InputError
from coadapt.units import parse_duration

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(?:at\s+)?(\d{1,2})(?::(\d{2}))?\s*(am|pm)?$")


class Target(NamedTuple):
    """``val_acc>=0.93``: a metric's name, which way is better, and how far."""

    name: str
    higher_is_better: bool
    value: float


class GpuRange(NamedTuple):
    """``a100:1..8``."""

    gpu_type: str
    low: int
    high: int


def parse_target(text: str) -> Target:
    """Name, direction and value."""
    match = re.fullmatch(r"\s*([\w./-]+)\s*(>=|<=|=>|=<|>|<)\s*([-+\d.eE]+)\s*(%?)\s*", text)
    if not match:
        raise InputError(f'target {text!r} is not understood; write for example "val_acc>=0.93" or "wer<=25"')
    try:
        value = float(match[3])
    except ValueError:
        raise InputError(f"target {text!r}: {match[3]!r} is not a number") from None
    return Target(match[1], ">" in match[2], value / 100 if match[4] else value)


def parse_gpus(text: str) -> list[GpuRange]:
    """Every type and range in ``a100:1..8,t4:4``, ``8`` or ``1..8``."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:([A-Za-z][\w-]*)\s*:?)?\s*(?:(\d+)(?:\s*(?:\.\.|-)\s*(\d+))?)?\s*", part)
        if not match or not part.strip():
            raise InputError(
                f"GPUs {part.strip()!r} are not understood; write for example a100:1..8, t4:4 or 1..8"
            )
        low = int(match[2] or 1)
        high = int(match[3] or match[2] or 8)
        if not 1 <= low <= high:
            raise InputError(
                f"GPUs {part.strip()!r}: from {low} to {high} is no range; the first must be 1 or more"
            )
        found.append(GpuRange((match[1] or "gpu").lower(), low, high))
    return found


def parse_range(name: str, text: str) -> tuple[int, int]:
    """Whole numbers ``32..4096``, or one of them."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:\.\.\s*(\d+))?\s*", text)
    if not match or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise InputError(f"{name} {text!r} is not a range; write for example 32..4096 or 256")
    return int(match[1]), int(match[2] or match[1])


def parse_money(text: str) -> float:
    """``40``, ``$40``, ``1,200.50``."""
    cleaned = text.strip().lstrip("$€£").replace(",", "")
    try:
        value = float(cleaned)
    except ValueError:
        raise InputError(f"budget {text!r} is not an amount; write for example 40 or $40") from None
    if not 0 < value < float("inf"):
        raise InputError(f"budget {text!r} must be more than 0")
    return value


def currency_in(text: str) -> str | None:
    """The sign before an amount."""
    found = re.match(r"\s*([$€£])", text)
    return found[1] if found else None


def parse_deadline(text: str, now: datetime) -> float:
    """Seconds from ``now``: a duration (6h), or a moment (tomorrow 9:00, friday 18:00, 2026-11-17 09:00, 9:00)."""
    plain = text.strip().lower()
    moment = _moment(plain, now)
    if moment is None:
        try:
            seconds = parse_duration(plain.removeprefix("in "))
        except InputError:
            raise InputError(
                f"deadline {text!r} is not understood; write for example 6h, 1h30m, 'tomorrow 9:00', 'friday 18:00' or "
                "'2026-11-17 09:00'"
            ) from None
        if seconds <= 0:
            raise InputError(f"deadline {text!r} must be more than 0")
        return seconds
    # as moments of the local clock: a night in which it is set forward or back is shorter or longer
    left = moment.timestamp() - now.timestamp()
    if left <= 0:
        raise InputError(f"deadline {text!r} ({moment:%Y-%m-%d %H:%M}) is over")
    return left


def _moment(text: str, now: datetime) -> datetime | None:
    try:
        # a date without an hour means its end
        dated = datetime.fromisoformat(text)
        whole_day = re.fullmatch(r"\d{4}-\d{2}-\d{2}", text)
        dated = dated if dated.tzinfo is None else dated.astimezone(now.tzinfo).replace(tzinfo=None)
        return dated + timedelta(days=1) if whole_day else dated
    except ValueError:
        pass
    word, _, rest = text.partition(" ")
    days = None
    if word in ("today", "tonight"):
        days = 0
    elif word == "tomorrow":
        days = 1
    elif word in _DAYS or word in {day[:3] for day in _DAYS}:
        wanted = next(i for i, day in enumerate(_DAYS) if day.startswith(word))
        days = (wanted - now.weekday()) % 7
    at = _clock(rest if days is not None else text)
    if days is None:
        if at is None or (":" not in text and not text.endswith(("am", "pm"))):
            return None
        moment = datetime.combine(now.date(), datetime.min.time()) + at
        return moment if moment > now else moment + timedelta(days=1)
    if rest.strip() and at is None:
        return None
    moment = datetime.combine(now.date(), datetime.min.time()) + timedelta(days=days)
    moment += at if at is not None else timedelta(days=1)
    return (
        moment + timedelta(days=7)
        if word not in ("today", "tonight", "tomorrow") and moment <= now
        else moment
    )


def _clock(text: str) -> timedelta | None:
    match = _CLOCK.match(text.strip())
    if not match:
        return None
    hour, minute = int(match[1]), int(match[2] or 0)
    if match[3]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[3] == "pm" else 0)
    return timedelta(hours=hour, minutes=minute) if hour <= 24 and minute < 60 else None
