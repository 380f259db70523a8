"""Virtual time: a heap of (time, priority, sequence), and the ``Feed`` the loop takes events from.

At one instant the executor's own events come first, then submissions and faults; the loop's timer comes
last, because ``next`` answers None only when nothing is left up to that time. So all facts of an instant
are in before the decision of that instant.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from coadapt.model import AnyEvent

#: Priorities at equal times.
EXECUTOR, OUTSIDE = 0, 1


class Timeline:
    """Implements ``runtime.Feed`` in virtual time."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._heap: list[tuple[float, int, int, AnyEvent | Callable[[], None]]] = []
        self._ready: deque[AnyEvent] = deque()
        self._pushed = 0

    def now(self) -> float:
        """Returns the present virtual time."""
        return self._now

    def empty(self) -> bool:
        """True if nothing is scheduled any more."""
        return not self._heap and not self._ready

    def at(self, time: float, what: AnyEvent | Callable[[], None], priority: int = EXECUTOR) -> None:
        """Schedules an event to be delivered, or a callable to be run, at ``time``."""
        self._pushed += 1
        heapq.heappush(self._heap, (time, priority, self._pushed, what))

    def deliver(self, event: AnyEvent) -> None:
        """Delivers an event right now, after those already waiting."""
        self._ready.append(event)

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """Returns the next event not later than ``until``, with its time; None if there is none."""
        heap, ready = self._heap, self._ready
        while True:
            if ready:
                return self._now, ready.popleft()
            if not heap or (until is not None and heap[0][0] > until):
                if until is not None and until > self._now:
                    self._now = until
                return None
            time, _, _, what = heapq.heappop(heap)
            if time > self._now:  # what was due before the simulation began happens at its beginning
                self._now = time
            if callable(what):
                what()
            else:
                return self._now, what
