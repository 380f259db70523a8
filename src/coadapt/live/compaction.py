"""Compacts the store of a cluster, beside the controller that writes to it.

Stretches of the log are replaced by packs with merged reports (``scheduler.state.compaction``), the oldest first, as far
as they are old enough. A pack ends at a mark, and a snapshot of the state there is kept with it; packs never reach beyond the second newest snapshot, so that a start of the controller
and of the API reads no pack. Each step is a short transaction, and a crash between two leaves nothing undone that the next
run does not find: a pack is whole or not there, and records that are also in a pack may stay or go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from coadapt.errors import CoadaptError, SavedStateError, StoreError
from coadapt.model import Record
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.compaction import MARK_S, compact
from coadapt.scheduler.state.state import SchedulerState
from coadapt.store.log import SqlLog

log = logging.getLogger(__name__)

#: Seconds for which every single report is kept.
DETAIL_S = 900.0
#: Seconds between two short transactions, so that the controller always gets its turn.
_PAUSE_S = 0.002
_DAY_S = 86400.0


class Stretch(NamedTuple):
    """Records that can be packed: sequence numbers of the first and the last one."""

    first: int
    last: int


class Packed(NamedTuple):
    """What compaction did."""

    #: Records that went into packs, and those that are left of them.
    records: int = 0
    kept: int = 0
    #: Bytes of the new packs.
    bytes: int = 0
    #: Stretches whose reports were not merged, because that would have changed the state.
    unmerged: int = 0


class Rules(NamedTuple):
    """When and how far the log is packed."""

    #: Seconds for which every single report is kept.
    detail_s: float = DETAIL_S
    #: Seconds between two marks; a pack ends at one.
    mark_s: float = MARK_S
    #: Records of a pack before their reports are merged: at most; and at least, unless they are older than a day.
    most: int = 250_000
    least: int = 5000


RULES = Rules()


def next_stretch(events: SqlLog, now: float, rules: Rules = RULES) -> Stretch | None:
    """Returns the oldest stretch that can be packed; None if there is none."""
    seqs, until = events.snapshot_seqs(), events.packed_until()
    first = events.first() if until < 0 else until + 1
    # never beyond the second newest snapshot: starts read no pack
    limit = min(seqs[-2], first + rules.most - 1) if len(seqs) > 1 else -1
    if limit <= first:
        return None
    begin, end = _time_of(events, first), min(_time_of(events, limit), now - rules.detail_s)
    mark = end // rules.mark_s * rules.mark_s
    if mark > begin:
        last = _last_before(events, mark, first, limit)
    elif limit == first + rules.most - 1 and _time_of(events, limit) <= end:
        last = limit  # more than one pack between two marks
    else:
        return None
    short = last - first + 1 < rules.least and now - begin < _DAY_S
    return None if short or last <= first else Stretch(first, last)


def _time_of(events: SqlLog, seq: int) -> float:
    record = events.find(seq)
    if record is None:
        raise StoreError(f"store {events.name} is damaged: record {seq} is missing")
    return record.at


def _last_before(events: SqlLog, at: float, low: int, high: int) -> int:
    """The last record before ``at``, by halving: times never go backwards, and nothing there is packed yet."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _time_of(events, middle) < at else (low, middle - 1)
    return low


def compact_store(
    events: SqlLog,
    *,
    now: float | None = None,
    rules: Rules = RULES,
    most: int | None = None,
    beat: Callable[[], None] = lambda: None,
) -> Packed:
    """Packs what can be packed, removes the originals, and returns free space to the system.

    Args:
        events: The log.
        now: Unix seconds; None: the time of this machine.
        rules: When and how far the log is packed.
        most: Most stretches to pack; None: all.
        beat: Called again and again.
    """
    now, done = time.time() if now is None else now, Packed()
    clear(events, beat)
    while most is None or most > 0:
        stretch = next_stretch(events, now, rules)
        if stretch is None:
            break
        found = _pack(events, stretch, rules.mark_s)
        done = Packed(*(one + other for one, other in zip(done, found, strict=True)))
        clear(events, beat)
        most = None if most is None else most - 1
    return done


def clear(events: SqlLog, beat: Callable[[], None] = lambda: None) -> None:
    """Removes records that are in packs, and gives the free space back."""
    for step in (events.clear_packed, events.give_back):
        while step():
            beat()
            time.sleep(_PAUSE_S)


def _pack(events: SqlLog, stretch: Stretch, mark_s: float) -> Packed:
    state, lead = _state_before(events, stretch.first)
    before = saved_state.save(state)
    records = [*lead, *_between(events, state.seq, stretch.last)]
    done = compact(state, records[len(lead) :], mark_s=mark_s)
    kept, unmerged = [*lead, *done.records], 0
    if not _same(before, done.records, state):
        log.error(
            "records %d to %d are packed without merging their reports: the state would differ", *stretch
        )
        kept, unmerged = records, 1
    written = events.pack(stretch.first, stretch.last, kept, saved_state.save(state, dense=True))
    return Packed(len(records), len(kept), written, unmerged)


def _same(before: bytes, records: list[Record], state: SchedulerState) -> bool:
    """Whether the shorter log, as it will be read, leads to the same state."""
    from coadapt.model import decode, encode

    shorter = saved_state.load(before)
    try:
        for record in records:
            shorter.apply(decode(encode(record)))
    except (CoadaptError, ArithmeticError, LookupError, ValueError):
        log.exception("a compacted log cannot be folded")
        return False
    return saved_state.save(shorter) == saved_state.save(state)


def _state_before(events: SqlLog, first: int) -> tuple[SchedulerState, list[Record]]:
    """The state before record ``first``, and records that it holds already but that belong to the stretch.

    Of a log whose beginning was forgotten the first record is in the snapshot that it begins with.
    """
    begin = events.first()
    wanted = first if first == begin > 0 and events.packed_until() < 0 else first - 1
    found = events.newest_snapshot(before=wanted + 1)
    state = SchedulerState()
    while found is not None:
        try:
            state = saved_state.load(found[1])
            break
        except SavedStateError:
            found = events.newest_snapshot(before=found[0])
    if found is None and begin > 0:
        raise CoadaptError(f"no snapshot before record {first} can be loaded; nothing is compacted")
    for record in _between(events, state.seq, wanted):
        state.apply(record)
    lead = list(_between(events, first - 1, wanted)) if wanted >= first else []
    return state, lead


def _between(events: SqlLog, after: int, last: int) -> Iterator[Record]:
    return takewhile(lambda record: record.seq <= last, events.read(after)) if after < last else iter(())
