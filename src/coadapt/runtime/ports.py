"""The seams of the system. Above them nothing knows whether the cluster is simulated or real."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from coadapt.model import Action, AnyEvent, Fact, Placement, Record


class Running(Fact, frozen=True):
    """One attempt that an executor holds processes of."""

    job: str
    attempt: int
    placement: Placement


class Executor(Protocol):
    """Runs jobs. Its events reach the loop through the ``Feed``.

    - ``apply`` is idempotent by action id: an action applied before, even by an earlier controller, is
      not done again. It returns at once; the outcome comes as events.
    - Every attempt that was started ends in exactly one ``JobStopped`` or ``JobFinished``, when its last
      process is gone; also when its node is lost. An exit nobody was there to hear is reported later.
    - An action for an attempt that has ended is a no-op.
    """

    def apply(self, actions: Sequence[Action]) -> None: ...

    def inventory(self) -> Sequence[Running]:
        """What is running right now, asked at start and after every doubt."""


class Feed(Protocol):
    """What happens next: events of the executor and of the inbox, in one order."""

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """Waits for the next event not later than ``until``, and returns it with its time.

        None: ``until`` has come. Without ``until``, None means that nothing will ever happen again.
        Events at ``until`` itself come before None.
        """

    def now(self) -> float:
        """The present, which never goes backwards."""


class Inbox(Protocol):
    """Submissions, cancels and changes; durable before they are answered."""

    def put(self, event: AnyEvent) -> int:
        """Stores the event and returns its number; once this returns the event cannot be lost."""

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """Events not yet acknowledged, in order."""

    def acknowledge(self, number: int) -> None:
        """The event is in the log; it need not be given again."""


class EventLog(Protocol):
    """The log. ``append`` returns when the records are as durable as the store can make them."""

    def append(self, records: Sequence[Record]) -> None:
        """Appends records whose sequence numbers follow the last one."""

    def read(self, after: int = -1) -> Iterable[Record]:
        """Records with a sequence number larger than ``after``, in order."""

    def last(self) -> int:
        """Sequence number of the newest record; -1 if there is none."""
