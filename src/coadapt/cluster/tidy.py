"""Retention: records that are long past, and in both snapshots, go."""

from __future__ import annotations

from coadapt.runtime import EventLog


def forget_old(events: EventLog, before: float) -> int:
    """Forgets records older than ``before`` (unix seconds), as far as the older of two snapshots has them.

    Not only the newest: should that one be unreadable, the one before and the records since must do. Returns how many went.
    """
    newest = events.newest_snapshot()
    older = events.newest_snapshot(before=newest[0]) if newest is not None else None
    if older is None:
        return 0
    first = events.first()
    cut = _first_at(events, before, first, older[0])
    if cut > first:
        events.forget(cut)
    return max(cut - first, 0)


def _first_at(events: EventLog, moment: float, low: int, high: int) -> int:
    """Sequence number, from ``low`` to ``high``, of the first record not older than ``moment``."""
    while low < high:
        middle = (low + high) // 2
        if next(iter(events.read(middle - 1))).at < moment:
            low = middle + 1
        else:
            high = middle
    return low
