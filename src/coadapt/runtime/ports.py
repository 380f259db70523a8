"""The ports of the system: protocols of executor, feed, inbox and log. Code above them does not know whether the cluster
is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from coadapt.errors import InputError
from coadapt.model import Action, AnyEvent, Fact, Placement, Record
from coadapt.model.lease import Holder, Make
from coadapt.wire.node_messages import Launch, LogSlice, SavedCheckpoint, Stream


class Running(Fact, frozen=True):
    """One attempt that an executor holds processes of, or whose end is still on its way to the log."""

    job: str
    attempt: int
    placement: Placement
    #: No process is left; the event that says so has not been taken yet (see ``Feed.next``).
    ended: bool = False


class Cursor(Fact, frozen=True):
    """Where an event stands among those of its source; numbers of one source grow."""

    #: Who keeps the event until it is acknowledged: a keeper, a node agent.
    source: str
    number: int


class JobSource(Protocol):
    """Source of what a job runs, asked by executors: actions and the log name jobs and do not hold their commands."""

    def launch(self, job: str) -> Launch:
        """Returns what replicas of ``job`` run; called at every start."""


class JobFiles(Protocol):
    """Access to the output and checkpoints of jobs. Also used by the API, which is another process than the controller."""

    def read_log(
        self, job: str, attempt: int, rank: int, stream: Stream, offset: int, limit: int
    ) -> LogSlice | None:
        """Returns output of one replica; None if there is none.

        Args:
            job: id of the job.
            attempt: number of the attempt.
            rank: rank of the replica.
            stream: standard output or standard error.
            offset: position of the first byte; negative: from the end. Bytes that were trimmed are skipped.
            limit: most bytes to return.
        """

    def checkpoints(self, job: str) -> Sequence[SavedCheckpoint]:
        """Returns all checkpoints of a job, unordered, including incomplete ones."""


class LoopExecutor(Protocol):
    """The part of an executor that the loop needs. A simulated one is no more than this: its events are those of its
    timeline.

    - ``apply`` is idempotent by action id: an action applied before, even by an earlier controller, is
      not done again. It returns at once; the outcome comes as events.
    - Every attempt that was started ends in exactly one ``JobStopped`` or ``JobFinished``, when its last
      process is gone; also when its node is lost. An exit while no controller ran is reported later.
    - An action for an attempt that has ended is a no-op, and so is the start of one that is not newer
      than all earlier ones of its job. A start waits until no process of an older attempt is left.
    - New actions come in the order of their ids. A negative id is not remembered: such an action (stop
      what should not run) may come again.
    - Events come at least once: again, after a restart, if they may not have reached the log.
    """

    def apply(self, actions: Sequence[Action]) -> None: ...

    def inventory(self) -> Sequence[Running]:
        """Returns the attempts that run, and those that have ended but whose end the loop has not yet taken.

        Called at start and whenever the loop is in doubt. An attempt that is missing is unknown: had it merely ended,
        its end would be in the log, or the attempt in the inventory. An executor that cannot reach one of its nodes
        waits or raises; it never leaves out attempts that the node may be running.
        """


class Executor(LoopExecutor, JobFiles, Protocol):
    """Runs jobs on real machines: the whole contract that ``executors`` plug-ins implement.

    It is given a ``JobSource``, which it asks at every ``StartJob``. It alone reports nodes: ``NodeJoined`` when a
    node is there (again whenever the node, or the process that watches over it, was restarted), ``NodeLost`` when a
    node is gone for good, ``NodeDrained`` when a node was closed from outside. Apart from requests of an
    administrator, no other component puts these events into the log. Single-threaded: only the caller that made it
    may call it.
    """

    def take(self, timeout_s: float) -> Sequence[tuple[Cursor, AnyEvent]]:
        """New events, waiting up to ``timeout_s`` for the first; then all that are there. Those of one source in its order."""

    def acknowledge(self, cursor: Cursor) -> None:
        """States that all events of ``cursor.source`` up to ``cursor.number`` are in the log and need not be sent again."""

    def close(self) -> None:
        """Disconnects; attempts go on, and their ends are reported to the next controller."""

    def shutdown(self) -> None:
        """Stops all attempts; returns when no process of them is left."""


class Feed(Protocol):
    """Source of the next event: events of the executor and of the inbox, in one order."""

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        """Waits for the next event not later than ``until``, and returns it with its time.

        None: ``until`` has come. Without ``until``, None means that nothing will ever happen again.
        Events at ``until`` itself come before None; one that came later comes after it, so that a stream
        of events without a pause cannot keep a decision waiting.

        Each call says that the event returned by the one before is in the log. A durable source
        (an executor, an inbox) forgets it only then, and gives it again to the next controller otherwise.
        """

    def now(self) -> float:
        """Returns the present time, which never goes backwards."""


class Inbox(Protocol):
    """Submissions, cancels and changes; durable before they are answered."""

    def put(self, event: AnyEvent, key: str | None = None) -> int:
        """Stores the event and returns its number; once this returns the event cannot be lost.

        With ``key``, putting the same event again gives the number it already has; another event, an InputError.
        """

    def submit(self, make: Make, key: str | None = None) -> int:
        """As ``put``, for an event that holds its own number: jobs are numbered 1, 2, 3, independently of other entries.

        ``make`` is called once or twice, and must be quick.
        """

    def submit_all(self, entries: Sequence[tuple[Make, str | None]]) -> Sequence[int | InputError]:
        """As ``submit``, for several events in one transaction; an error concerns its own entry alone."""

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """Events not yet acknowledged, in order; perhaps not all of them at once."""

    def acknowledge(self, number: int) -> None:
        """States that the event is in the log and need not be returned again."""

    def prune(self, keys_kept_s: float = ...) -> int:
        """Removes acknowledged entries, those with a key after ``keys_kept_s`` seconds; returns how many."""


class EventLog(Protocol):
    """The event log. ``append`` returns when the records are as durable as the store can make them."""

    def append(self, records: Sequence[Record]) -> None:
        """Appends records whose sequence numbers follow the last one."""

    def read(self, after: int = -1) -> Iterable[Record]:
        """Records with a sequence number larger than ``after``, in order; InputError if some were forgotten."""

    def last(self) -> int:
        """Sequence number of the newest record; -1 if there is none."""

    def first(self) -> int:
        """Sequence number of the oldest record that is not forgotten; 0 if there is none."""

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Saves the state as of record ``seq``, and keeps the snapshot before; older ones are removed."""

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """Returns the newest snapshot, or the newest with a smaller sequence number than ``before``."""

    def forget(self, before_seq: int) -> None:
        """Removes records with a smaller number than ``before_seq``; they must be covered by the newest snapshot."""


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
        """Takes the writer's lease, or renews it; LeaseHeldError while another owner has it.

        Args:
            owner: name of the writer.
            ttl_s: seconds after which the lease expires if it is not renewed.
            now: the present time.
            gone: whether another owner is known to be dead (its process no longer exists), so that a controller that
                was
                killed is replaced at once and not after ``ttl_s``.
        """

    @property
    def epoch(self) -> int:
        """Epoch of the lease, larger than those of all earlier holders; 0: it was not taken."""

    def release(self) -> None:
        """Gives the lease back, so that the next controller need not wait."""

    def holder(self) -> Holder | None:
        """Returns the holder of the lease; None if there is none."""

    def save_status(self, text: str) -> None:
        """Replaces the writer's status. It is not part of the log, and a power cut may undo the change."""

    def status(self) -> str | None:
        """Returns the status saved last."""
