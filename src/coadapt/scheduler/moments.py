"""When jobs are to be looked at again: at most one moment each, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Moments:
    """A heap with one entry that counts per job; entries that no longer do are dropped when they come up."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, job: str, at: float | None) -> None:
        """From now on this is the job's moment; None: it has none."""
        if self._at.get(job) == at:
            return
        if at is None:
            del self._at[job]
        else:
            self._at[job] = at
            heapq.heappush(self._heap, (at, job))

    def of(self, job: str) -> float | None:
        """The job's moment."""
        return self._at.get(job)

    @property
    def next(self) -> float | None:
        """The earliest moment of any job."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now: float) -> list[str]:
        """Jobs whose moment has come, in order of their moments; they have none any more."""
        due: list[str] = []
        while (at := self.next) is not None and at <= now:
            _, job = heapq.heappop(self._heap)
            del self._at[job]
            due.append(job)
        return due

    def items(self) -> Iterable[tuple[str, float]]:
        """Jobs and their moments, in no order."""
        return self._at.items()

    def __len__(self) -> int:
        return len(self._at)
