"""The log in memory: for simulations and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from coadapt.errors import InvariantError
from coadapt.model import Record


class MemoryLog:
    """A list of records. ``keep=False`` counts them and forgets them."""

    def __init__(self, *, keep: bool = True) -> None:
        self._records: list[Record] = []
        self._keep, self._last = keep, -1

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
        return islice(self._records, after + 1, None)

    def last(self) -> int:
        """See ``EventLog``."""
        return self._last
