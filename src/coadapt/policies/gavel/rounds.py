"""Turns time fractions into rounds: the job that is furthest behind its share of a GPU type runs next.

The mechanism of Gavel (section 5 of the paper), as released. For every row (a job or a pair) and GPU type it keeps the
seconds that the row has used of the type; ``priority`` compares the fraction x that is due with the part received:

    priority = x / (used / sum of used over all rows);  1e9 x if nothing was used;  0 if x or the rate is 0

Used time starts at half a round. A new matrix of fractions starts the count again and adds what is owed to the deficit,
which decides between equal priorities: deficit += x_before * seconds - (used - half a round).

GPU types are walked in a given order. On each, rows by priority, deficit and fraction are taken if no member is taken yet
and their GPUs fit the number left. So rows with a fraction of 0 fill GPUs that are left over.

A row without fractions, because its job came after they were computed, takes its GPUs out of the number left and does
not run: as released. It waits at most until the next matrix.

Everything here is plain data: it is written into the log, and read from there after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

#: A row in the order of its members: a job, or a pair of jobs on the same GPUs.
Key = tuple[str, ...]
#: Priority of a row that is due and has used nothing, per unit of its fraction.
_NEVER_USED = 1e9


class RowTime(msgspec.Struct):
    """Seconds of one row by GPU type: used since the last matrix, and owed from earlier ones; and its fractions, None
    before its first matrix.
    """

    used: list[float]
    owed: list[float]
    due: list[float] | None = None


class Clock(msgspec.Struct):
    """What the mechanism remembers."""

    rows: dict[Key, RowTime] = {}
    #: Seconds used by GPU type, of all rows that the last matrix knew and since then.
    total: list[float] = []
    #: When the last matrix was computed.
    computed_at: float = 0.0
    #: True if a job came or left since.
    changed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that may run: its GPUs and whether it can run on each type."""

    key: Key
    gpus: int
    runs_on: tuple[bool, ...]


def enter(clock: Clock, key: Key, types: int, half_round_s: float) -> None:
    """Takes in a row."""
    if key not in clock.rows:
        clock.rows[key] = RowTime(used=[half_round_s] * types, owed=[0.0] * types)


def leave(clock: Clock, keys: Iterable[Key]) -> None:
    """Forgets rows whose job has ended."""
    for key in keys:
        clock.rows.pop(key, None)


def book(clock: Clock, key: Key, column: int, seconds: float) -> None:
    """Adds the seconds that a row has run in a round."""
    row = clock.rows.get(key)
    if row is not None:
        row.used[column] += seconds
    if clock.total:
        clock.total[column] += seconds


def compute(
    clock: Clock, fractions: Mapping[Key, Sequence[float]], now: float, types: int, half_round_s: float
) -> None:
    """Starts the count anew with a new matrix; rows that it does not name have a fraction of 0."""
    seconds = now - clock.computed_at
    for key, row in clock.rows.items():
        if row.due is not None:
            for column, due in enumerate(row.due):
                row.owed[column] += due * seconds - (row.used[column] - half_round_s)
        row.used = [half_round_s] * types
        row.due = list(fractions.get(key, (0.0,) * types))
    clock.total = [half_round_s * len(clock.rows)] * types
    clock.computed_at = now
    clock.changed = False


def priority(clock: Clock, row: RowTime, column: int) -> float:
    """How far the row is behind its share of the type."""
    if row.due is None or not row.due[column]:
        return 0.0
    used, total = row.used[column], clock.total[column]
    if not used or not total:
        return _NEVER_USED * row.due[column]
    return row.due[column] / (used / total)


def select(
    clock: Clock,
    candidates: Sequence[Candidate],
    room: Sequence[int],
    order: Iterable[int],
    *,
    fill: bool = True,
    kept: Mapping[Key, int] | None = None,
) -> dict[Key, int]:
    """Chooses the rows that run next, with the index of their GPU type.

    Args:
        clock: seconds used and due.
        candidates: rows in order of arrival.
        room: GPUs of each type that may be given.
        order: indices of the types, in the order in which they are filled.
        fill: give GPUs that are left over to rows with a fraction of 0.
        kept: rows that go on where they are.
    """
    runs: dict[Key, int] = dict(kept or {})
    taken = {name for key in runs for name in key}
    gpus = {candidate.key: candidate.gpus for candidate in candidates} if runs else {}
    for column in order:
        left = room[column] - sum(gpus[key] for key, at in runs.items() if at == column)
        ranked = []
        for candidate in candidates:
            row = clock.rows[candidate.key]
            due = 0.0 if row.due is None else row.due[column]
            rank = priority(clock, row, column) if candidate.runs_on[column] else 0.0
            ranked.append(((rank, row.owed[column], due), candidate))
        ranked.sort(key=lambda each: each[0], reverse=True)
        for (rank, _, _), candidate in ranked:
            if left == 0:
                break
            if candidate.gpus > left or not candidate.runs_on[column] or not taken.isdisjoint(candidate.key):
                continue
            if rank <= 0 and not fill:
                continue
            left -= candidate.gpus
            taken.update(candidate.key)
            if clock.rows[candidate.key].due is not None:
                runs[candidate.key] = column
    return runs
