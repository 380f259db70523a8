"""Retention: records that are long past go, up to a snapshot from which the rest can still be folded."""

from __future__ import annotations

from coadapt.runtime import EventLog


def forget_old(events: EventLog, before: float) -> int:
    """Forgets records up to a snapshot that is older than ``before`` (unix seconds); how many went.

    So every moment since ``before`` can still be folded to (``why --at``). Never up to the newest two snapshots: should one be unreadable,
    the one before and the records since must do. One stretch between two snapshots at a time, the oldest: a controller has other things
    to do, and calls again.
    """
    oldest, newer, first = None, 0, events.first()
    found = events.newest_snapshot()
    while found is not None and found[0] >= first:
        seq = found[0]
        if newer >= 1 and seq > first and next(iter(events.read(seq - 1))).at <= before:
            oldest = seq
        newer, found = newer + 1, events.newest_snapshot(before=seq)
    if oldest is None:
        return 0
    events.forget(oldest)
    return oldest - first
