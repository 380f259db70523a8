"""A log that nobody will read: for simulations of which only the outcome counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coadapt.model import Record


class Unwritten:
    """Implements ``runtime.EventLog``; remembers the last number and nothing else."""

    def __init__(self) -> None:
        self._last = -1

    def append(self, records: Sequence[Record]) -> None:
        """See ``EventLog``."""
        if records:
            self._last = records[-1].seq

    def read(self, after: int = -1) -> Iterable[Record]:
        """See ``EventLog``: nothing."""
        return ()

    def last(self) -> int:
        """See ``EventLog``."""
        return self._last

    def first(self) -> int:
        """See ``EventLog``."""
        return self._last + 1

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """See ``EventLog``: nobody would ask for it."""

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """See ``EventLog``: none."""
        return None

    def forget(self, before_seq: int) -> None:
        """See ``EventLog``: it is."""
