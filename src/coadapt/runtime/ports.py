"""The seams of the system. Above them nothing knows whether the cluster is simulated or real."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from coadapt.model import Action, AnyEvent, Fact, Placement, Record


class Running(Fact, frozen=True):
    """One attempt that an executor holds processes of, or whose end is still on its way to the log."""

    job: str
    attempt: int
    placement: Placement
    #: No process is left; the event that says so has not been taken yet (see ``Feed.next``).
    ended: bool = False


class Executor(Protocol):
    """Runs jobs. Its events reach the loop through the ``Feed``.

    - ``apply`` is idempotent by action id: an action applied before, even by an earlier controller, is
      not done again. It returns at once; the outcome comes as events.
    - Every attempt that was started ends in exactly one ``JobStopped`` or ``JobFinished``, when its last
      process is gone; also when its node is lost. An exit nobody was there to hear is reported later.
    - An action for an attempt that has ended is a no-op, and so is the start of one that is not newer
      than all earlier ones of its job. A start waits until no process of an older attempt is left.
    - New actions come in the order of their ids. A negative id is not remembered: such an action (stop
      what should not run) may come again.
    - Events come at least once: again, after a restart, if they were not in the log for certain.
    """

    def apply(self, actions: Sequence[Action]) -> None: ...

    def inventory(self) -> Sequence[Running]:
        """What is running, and what has ended but whose end the loop has not yet taken.

        Asked at start and after every doubt. An attempt that is not in it is known to nobody: had it
        merely ended, its end would be in the log, or the attempt in here.
        """


class Feed(Protocol):
    """What happens next: events of the executor and of the inbox, in one order."""

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """Waits for the next event not later than ``until``, and returns it with its time.

        None: ``until`` has come. Without ``until``, None means that nothing will ever happen again.
        Events at ``until`` itself come before None; one that came later comes after it, so that a stream
        of events without a pause cannot keep a decision waiting.

        Each call says that the event returned by the one before is in the log. A durable source
        (an executor, an inbox) forgets it only then, and gives it again to the next controller otherwise.
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
