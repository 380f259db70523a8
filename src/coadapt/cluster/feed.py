"""What happens next, in real time: the executor's events and the inbox, joined into one order.

All that is there when the feed looks is one instant and gets one time; so a burst of submissions costs
one decision, and a stream of events that never pauses cannot keep a decision from its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from coadapt.model import AnyEvent
from coadapt.runtime import Inbox


class EventSource(Protocol):
    """The side of an executor that tells: events that stay with it until they are acknowledged."""

    def take(self, timeout_s: float) -> Sequence[tuple[int, AnyEvent]]:
        """New events with their numbers, waiting up to ``timeout_s`` for the first; then all that are there."""

    def acknowledge(self, number: int) -> None:
        """All events up to ``number`` are in the log."""


class LocalFeed:
    """Implements ``runtime.Feed``. ``clock`` gives unix seconds that never go backwards (``SteadyClock``).

    ``heartbeat`` is called with the time at every look, at least every ``poll_s``: there a controller
    renews its lease.
    """

    def __init__(
        self,
        executor: EventSource,
        inbox: Inbox,
        clock: Callable[[], float],
        *,
        poll_s: float = 0.05,
        heartbeat: Callable[[float], None] = lambda now: None,
    ) -> None:
        self.executor, self.inbox, self.clock = executor, inbox, clock
        self.poll_s, self.heartbeat = poll_s, heartbeat
        #: (time seen, acknowledgement, event), in order.
        self._seen: deque[tuple[float, Callable[[], None], AnyEvent]] = deque()
        self._acknowledge: Callable[[], None] | None = None
        self._stopped = False

    def now(self) -> float:
        """See ``Feed``."""
        return self.clock()

    def stop(self) -> None:
        """From now on ``next`` waits no more. May be called from a signal handler."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Whether the loop should end."""
        return self._stopped

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """See ``Feed``. None also after ``stop``."""
        if self._acknowledge is not None:
            # asking for the next event says that the last one is in the log
            self._acknowledge()
            self._acknowledge = None
        wait_s = 0.0
        while not self._stopped:
            if not self._seen:
                self._look(wait_s)
            if self._seen and (until is None or self._seen[0][0] <= until):
                at, self._acknowledge, event = self._seen.popleft()
                return at, event
            now = self.clock()
            if until is not None and now >= until:
                return None
            wait_s = self.poll_s if until is None else min(self.poll_s, until - now)
        return None

    def _look(self, wait_s: float) -> None:
        happened = self.executor.take(wait_s)
        now = self.clock()
        self.heartbeat(now)
        for number, event in happened:
            self._seen.append((now, partial(self.executor.acknowledge, number), event))
        for number, event in self.inbox.take():
            self._seen.append((now, partial(self.inbox.acknowledge, number), event))
