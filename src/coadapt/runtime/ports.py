"""The seams of the system. Above them nothing knows whether the cluster is simulated or real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from coadapt.errors import InputError
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


#: Makes an event that knows the number of its entry in the inbox.
Make = Callable[[int], AnyEvent]


class Inbox(Protocol):
    """Submissions, cancels and changes; durable before they are answered."""

    def put(self, event: AnyEvent, key: str | None = None) -> int:
        """Stores the event and returns its number; once this returns the event cannot be lost.

        With ``key``, putting the same event again gives the number it already has; another event, an InputError.
        """

    def submit(self, make: Make, key: str | None = None) -> int:
        """The same for an event that holds its own number, a job that of the jobs: 1, 2, 3, whatever else is put.

        ``make`` is called once or twice, and must be quick.
        """

    def submit_all(self, entries: Sequence[tuple[Make, str | None]]) -> Sequence[int | InputError]:
        """Several at once, as durable as one and for the price of one; an error is of its own entry alone."""

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """Events not yet acknowledged, in order; perhaps not all of them at once."""

    def acknowledge(self, number: int) -> None:
        """The event is in the log; it need not be given again."""

    def prune(self, keys_kept_s: float = ...) -> int:
        """Removes entries that were acknowledged, those with a key so many seconds after; how many there were."""


class EventLog(Protocol):
    """The log. ``append`` returns when the records are as durable as the store can make them."""

    def append(self, records: Sequence[Record]) -> None:
        """Appends records whose sequence numbers follow the last one."""

    def read(self, after: int = -1) -> Iterable[Record]:
        """Records with a sequence number larger than ``after``, in order; InputError if some were forgotten."""

    def last(self) -> int:
        """Sequence number of the newest record; -1 if there is none."""

    def first(self) -> int:
        """Sequence number of the oldest record that is not forgotten; 0 if there is none."""

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Keeps the state as of record ``seq``, and the one before; older ones go."""

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """The newest one, or the newest of a smaller sequence number than ``before``."""

    def forget(self, before_seq: int) -> None:
        """Removes records with a smaller number; only such as are in the newest snapshot."""


class Holder(Fact, frozen=True):
    """Who holds the writer's lease."""

    owner: str
    expires_at: float
    #: Seconds since it was taken or renewed, by the store's own clock.
    age_s: float


class LeasedLog(EventLog, Protocol):
    """A log with one writer at a time."""

    @property
    def identity(self) -> str:
        """A name no other store has; executors use it to refuse the actions of another log."""

    def bind(self, home: str) -> None:
        """Ties the store to the first home directory that uses it; InputError for any other.

        Jobs run under the keeper of a home: a controller elsewhere would take them for lost, and start them twice.
        """

    def acquire(self, owner: str, ttl_s: float, now: float, *, gone: Callable[[str], bool] = ...) -> None:
        """Takes the writer's lease, or renews it; InputError while another owner has it.

        ``gone`` says whether another owner is known to be dead (its process no longer exists), so that
        a controller that was killed is replaced at once and not after ``ttl_s``.
        """

    def release(self) -> None:
        """Gives the lease back, so that the next controller need not wait."""

    def holder(self) -> Holder | None:
        """Who has the lease; None: nobody."""

    def save_status(self, text: str) -> None:
        """What the writer says of itself, instead of what it said before; no part of the log, and a power cut may undo it."""

    def status(self) -> str | None:
        """What it said last."""
