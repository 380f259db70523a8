"""Parses deadlines ("6h", "tomorrow 9:00") and past times ("2h ago")."""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta

from coadapt.errors import InputError
from coadapt.units import parse_duration

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(?:at\s+)?(\d{1,2})(?::(\d{2}))?\s*(am|pm)?$")
#: Tolerated difference between the clocks of two machines.
_AHEAD_S = 60.0


def parse_deadline(given: str | float | date, now: datetime) -> float:
    """Return the seconds from ``now`` until a deadline.

    ``given`` is a duration (6h; a number is seconds) or a time (tomorrow 9:00, friday 18:00, 2026-11-17 09:00, 9:00).
    """
    text = given.isoformat() if isinstance(given, date) else str(given)
    plain = text.strip().lower()
    try:
        moment = None if isinstance(given, int | float) else _moment(plain, now)
        # by timestamps, so that changes to and from daylight saving time are counted
        left = None if moment is None else moment.timestamp() - now.timestamp()
    except (OverflowError, ValueError):
        raise InputError(f"deadline {text!r} is too far in the future") from None
    if moment is None or left is None:
        seconds = _seconds(given, plain)
        if seconds is None:
            raise InputError(
                f"deadline {text!r} is not valid; write for example 6h, 1h30m, 'tomorrow 9:00', 'friday 18:00' or "
                "'2026-11-17 09:00'"
            )
        if not 0 < seconds < math.inf:
            raise InputError(f"deadline {text!r} must be more than 0")
        return seconds
    if left <= 0:
        raise InputError(f"deadline {text!r} ({moment:%Y-%m-%d %H:%M}) has passed")
    return left


def _seconds(given: str | float | date, plain: str) -> float | None:
    if isinstance(given, int | float):
        return None if isinstance(given, bool) else float(given)
    try:
        return parse_duration(plain.removeprefix("in "))
    except InputError:
        return None


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


def parse_past(text: str, now: datetime | None = None) -> float:
    """Parse a past time into Unix seconds: "14:05", "2h ago", "2026-11-15 14:05" or a Unix time.

    Raises an InputError for a time in the future.
    """
    now = datetime.now().astimezone() if now is None else now
    found = _past_moment(text, now)
    if found > now.timestamp() + _AHEAD_S:
        raise InputError(f"{text!r} is in the future; use 'coadapt eta' for forecasts")
    return found


def _past_moment(text: str, now: datetime) -> float:
    given = text.strip().lower()
    try:
        if given.endswith("ago"):
            return now.timestamp() - parse_duration(given[:-3])
        if re.fullmatch(r"\d{9,11}(\.\d+)?", given):
            return float(given)
        if match := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", given):
            hour, minute, second = (int(part or 0) for part in match.groups())
            at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at <= now else at - timedelta(days=1)).timestamp()
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.astimezone()).timestamp()
    except (ValueError, InputError, OverflowError):
        raise InputError(
            f'{text!r} is not a time; write for example "14:05", "2h ago" or "2026-11-15 14:05"'
        ) from None
