"""The log in memory: for simulations and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from coadapt.errors import InputError, InvariantError
from coadapt.model import Record
from coadapt.store.log import ANCHOR_EVERY, SNAPSHOTS


class MemoryLog:
    """A list of records. ``keep=False`` counts them and forgets them."""

    def __init__(self, *, keep: bool = True) -> None:
        self._records: list[Record] = []
        self._keep, self._last = keep, -1
        #: Sequence number of the first record in the list.
        self._first = 0
        self._snapshots: dict[int, bytes] = {}

    def append(self, records: Sequence[Record]) -> None:
        """See ``EventLog``."""
        if records and records[0].seq != self._last + 1:
            raise InvariantError(f"record {records[0].seq} appended after {self._last}")
        if self._keep:
            self._records.extend(records)
        if records:
            self._last = records[-1].seq

    def read(self, after: int = -1) -> Iterable[Record]:
        """See ``EventLog``."""
        if after + 1 < self._first:
            raise InputError(
                f"records before {self._first} were forgotten; read from there, or from a snapshot"
            )
        return islice(self._records, after + 1 - self._first, None)

    def last(self) -> int:
        """See ``EventLog``."""
        return self._last

    def first(self) -> int:
        """See ``EventLog``."""
        return self._first

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """See ``EventLog``."""
        if not 0 <= seq <= self._last:
            raise InvariantError(f"a snapshot of record {seq}, which is not in the log")
        self._snapshots[seq] = data
        anchors = {at // ANCHOR_EVERY: at for at in sorted(self._snapshots, reverse=True)}
        for old in sorted(self._snapshots)[:-SNAPSHOTS]:
            if old not in anchors.values():
                del self._snapshots[old]

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """See ``EventLog``."""
        found = [seq for seq in self._snapshots if before is None or seq < before]
        return (max(found), self._snapshots[max(found)]) if found else None

    def forget(self, before_seq: int) -> None:
        """See ``EventLog``."""
        newest = max(self._snapshots, default=-1)
        if before_seq > newest:
            raise InvariantError(
                f"records before {before_seq} cannot be forgotten; the newest snapshot is of record {newest}"
            )
        if before_seq > self._first:
            del self._records[: before_seq - self._first]
            self._first = before_seq
            self._snapshots = {at: data for at, data in self._snapshots.items() if at >= before_seq}
