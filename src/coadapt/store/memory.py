"""The log in memory: for simulations and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from coadapt.errors import InputError, InvariantError
from coadapt.model import Record
from coadapt.store.log import ANCHOR_EVERY, SNAPSHOTS


class MemoryLog:
    """An event log in memory. With ``keep=False`` it counts records and discards them."""

    def __init__(self, *, keep: bool = True) -> None:
        self._records: list[Record] = []
        self._keep, self._last = keep, -1
        #: Sequence number of the first record in the list.
        self._first = 0
        self._snapshots: dict[int, bytes] = {}

    def append(self, records: Sequence[Record]) -> None:
        """Appends records whose sequence numbers follow the last one."""
        if records and records[0].seq != self._last + 1:
            raise InvariantError(f"record {records[0].seq} appended after {self._last}")
        if self._keep:
            self._records.extend(records)
        if records:
            self._last = records[-1].seq

    def read(self, after: int = -1) -> Iterable[Record]:
        """Returns the records after sequence number ``after``."""
        if after + 1 < self._first:
            raise InputError(
                f"records before {self._first} were forgotten; read from there, or from a snapshot"
            )
        return islice(self._records, after + 1 - self._first, None)

    def last(self) -> int:
        """Returns the sequence number of the newest record; -1 if there is none."""
        return self._last

    def first(self) -> int:
        """Returns the sequence number of the oldest record that is not forgotten; 0 if there is none."""
        return self._first

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Saves the state as of record ``seq``."""
        if not 0 <= seq <= self._last:
            raise InvariantError(f"a snapshot of record {seq}, which is not in the log")
        self._snapshots[seq] = data
        anchors = {at // ANCHOR_EVERY: at for at in sorted(self._snapshots, reverse=True)}
        for old in sorted(self._snapshots)[:-SNAPSHOTS]:
            if old not in anchors.values():
                del self._snapshots[old]

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """Returns the newest snapshot, or the newest one of a record before ``before``; None if there is none."""
        found = [seq for seq in self._snapshots if before is None or seq < before]
        return (max(found), self._snapshots[max(found)]) if found else None

    def forget(self, before_seq: int) -> None:
        """Removes records before ``before_seq``, all of which must be in the newest snapshot."""
        newest = max(self._snapshots, default=-1)
        if before_seq > newest:
            raise InvariantError(
                f"records before {before_seq} cannot be forgotten; the newest snapshot is of record {newest}"
            )
        if before_seq > self._first:
            del self._records[: before_seq - self._first]
            self._first = before_seq
            self._snapshots = {at: data for at, data in self._snapshots.items() if at >= before_seq}
