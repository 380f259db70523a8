"""Moments of the past as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from coadapt.errors import InputError
from coadapt.units import parse_duration

_AHEAD_S = 60.0


def parse_past(text: str, now: datetime | None = None) -> float:
    """Unix seconds of "14:05", "2h ago", "2026-11-15 14:05", or of themselves; InputError for what is still to come."""
    now = datetime.now().astimezone() if now is None else now
    found = _moment(text, now)
    # clocks of two machines differ a little
    if found > now.timestamp() + _AHEAD_S:
        raise InputError(f"{text!r} is still to come; 'coadapt eta' says what is foreseen")
    return found


def _moment(text: str, now: datetime) -> float:
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
            f'{text!r} is not a moment; write for example "14:05", "2h ago" or "2026-11-15 14:05"'
        ) from None
