"""Where in thousands of jobs those of a user or in a phase are: sorted orders, so that a page costs what it holds."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import islice

Key = tuple[str | None, str]


class JobIndex:
    """Jobs by (user, phase), and by (None, phase) for all users together."""

    def __init__(self) -> None:
        self._orders: dict[Key, list[int]] = {}
        self._where: dict[int, tuple[str, str, str]] = {}

    def put(self, order: int, job: str, user: str, phase: str) -> None:
        """The job is in this phase now."""
        before = self._where.get(order)
        entry = (job, user, phase)
        if before == entry:
            return
        if before is not None:
            self.drop(order)
        self._where[order] = entry
        for key in ((None, phase), (user, phase)):
            insort(self._orders.setdefault(key, []), order)

    def drop(self, order: int) -> None:
        """The job is no more."""
        _, user, phase = self._where.pop(order)
        for key in ((None, phase), (user, phase)):
            orders = self._orders[key]
            del orders[bisect_left(orders, order)]

    def page(
        self, *, user: str | None, phases: Iterable[str], before: int | None, limit: int
    ) -> tuple[Sequence[str], int, int | None]:
        """Names of jobs, newest first; how many match in all; the order to go on before."""
        lists = [orders for phase in phases if (orders := self._orders.get((user, phase)))]
        total = sum(map(len, lists))
        parts = []
        for orders in lists:
            end = len(orders) if before is None else bisect_left(orders, before)
            parts.append(orders[max(0, end - limit - 1) : end][::-1])
        found = list(islice(heapq.merge(*parts, reverse=True), limit + 1))
        more = len(found) > limit
        found = found[:limit]
        return [self._where[order][0] for order in found], total, found[-1] if more else None

    def count(self, phase: str, user: str | None = None) -> int:
        """Jobs in a phase."""
        return len(self._orders.get((user, phase), ()))

    def names(self, phase: str) -> list[str]:
        """Jobs in a phase, by order."""
        return [self._where[order][0] for order in self._orders.get((None, phase), ())]

    def known(self) -> list[tuple[int, str]]:
        """(order, job) of all that are indexed."""
        return [(order, entry[0]) for order, entry in self._where.items()]
