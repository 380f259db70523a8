"""The keeper's durable state: the actions it has applied, its attempts, and events not yet acknowledged.

It is a small SQLite file of its own, apart from the controller's store: a keeper outlives controllers, and on a
cluster it runs on another machine than they do.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from coadapt.executors.node.processes import Leader
from coadapt.executors.node.protocol import Happened, Held
from coadapt.model import (
    Action,
    AnyEvent,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Measured,
    Node,
    NodeJoined,
    NodeLost,
    Placement,
    ReplicasReleased,
    StartJob,
)

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS applied (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT, attempt INTEGER, token TEXT NOT NULL, placement BLOB NOT NULL,
    end_number INTEGER, PRIMARY KEY (job, attempt)
);
CREATE TABLE IF NOT EXISTS leaders (job TEXT, attempt INTEGER, leader BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL);
"""

#: Number of actions and of ended attempts that are remembered.
KEPT = 100_000
#: Most unacknowledged events at which measurements are still recorded: a controller may be away for long.
_MOST_UNHEARD = 20_000
_event_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt whose keeper died."""

    job: str
    attempt: int
    token: str
    leaders: tuple[Leader, ...]


class Journal:
    """Every method is one transaction, durable when it returns; those inside ``together`` are one transaction."""

    #: Number of transactions that this process has made: what tests guard.
    transactions = 0

    def __init__(self, path: Path) -> None:
        # readable by its owner only; an existing file is never opened here: closing it would drop SQLite's locks
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        with self._transaction() as connection:
            for statement in _TABLES.split(";"):
                connection.execute(statement)

    def bind(self, log: str) -> str:
        """Ties the journal to the first event log that uses it; returns the log it is tied to.

        Action ids and attempt numbers mean something only within one log: with those of another the
        keeper would take new actions for old ones.
        """
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO meta VALUES ('log', ?)", (log,))
            return str(connection.execute("SELECT value FROM meta WHERE key = 'log'").fetchone()[0])

    def reach_epoch(self, epoch: int) -> int:
        """Notes the epoch of a controller; returns the largest that was ever noted."""
        with self._transaction() as connection:
            found = connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            largest = max(int(found[0]) if found else 0, epoch)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(largest),))
            return largest

    def accept(self, actions: Iterable[Action]) -> list[tuple[Action, str]]:
        """Notes the actions; returns those to carry out: not applied before, and not of a stale attempt.

        Each comes with a token, which for a start is the new attempt's: it is written down before the
        first process exists, so that no process can be overlooked. A negative id is never remembered: such actions (stop what should not run) are harmless twice.
        """
        fresh: list[tuple[Action, str]] = []
        with self._transaction() as connection:
            floor = self._floor(connection)
            for action in actions:
                if 0 <= action.id < floor:
                    continue
                if action.id >= 0:
                    known = connection.execute("INSERT OR IGNORE INTO applied VALUES (?)", (action.id,))
                    if known.rowcount == 0:
                        continue
                token = uuid.uuid4().hex
                if isinstance(action, StartJob) and not self._note_start(connection, action, token):
                    continue
                fresh.append((action, token))
        return fresh

    def leads(
        self, key: tuple[str, int], leaders: Sequence[Leader], event: JobStarted | JobResized | None = None
    ) -> None:
        """Sets the leaders of the attempt's sessions; ``event``: all replicas of its present placement run."""
        with self._transaction() as connection:
            self._set_leaders(connection, key, leaders)
            if event is not None:
                self._emit(connection, event)

    def measured(self, events: Iterable[Measured]) -> None:
        """Records reports of agents, up to a bound of unacknowledged events; beyond it reports are dropped."""
        with self._transaction() as connection:
            unheard = connection.execute("SELECT count(*) FROM events").fetchone()[0]
            for event in events:
                if unheard < _MOST_UNHEARD:
                    self._emit(connection, event)
                    unheard += 1

    def joined(self, nodes: Sequence[Node]) -> None:
        """Records that a keeper offers these nodes; those of its predecessor that are not among them are lost."""
        names = [node.name for node in nodes]
        with self._transaction() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = 'nodes'").fetchone()
            for name in msgspec.json.decode(row[0], type=list[str]) if row else ():
                if name not in names:
                    self._emit(connection, NodeLost(node=name))
            for node in nodes:
                self._emit(connection, NodeJoined(node=node))
            text = msgspec.json.encode(names).decode()
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('nodes', ?)", (text,))

    def released(self, event: ReplicasReleased) -> None:
        """Records that the attempt no longer holds its old placement, in a resize by restart."""
        with self._transaction() as connection:
            self._emit(connection, event)
            self._set_placement(connection, event)

    def moved(self, leaders: Sequence[Leader], released: ReplicasReleased, resized: JobResized) -> None:
        """Records that a resize in place is done: the devices it released are free, and all its replicas run."""
        with self._transaction() as connection:
            self._set_leaders(connection, (released.job, released.attempt), leaders)
            self._set_placement(connection, released)
            self._emit(connection, released)
            self._emit(connection, resized)

    def ended(self, event: JobFinished | JobStopped) -> None:
        """Records that the last process of the attempt is gone. A second end of one attempt is not recorded."""
        key = (event.job, event.attempt)
        with self._transaction() as connection:
            open_still = connection.execute(
                "SELECT 1 FROM attempts WHERE job = ? AND attempt = ? AND end_number IS NULL", key
            ).fetchone()
            if open_still:
                number = self._emit(connection, event)
                connection.execute(
                    "UPDATE attempts SET end_number = ? WHERE job = ? AND attempt = ?", (number, *key)
                )
                connection.execute("DELETE FROM leaders WHERE job = ? AND attempt = ?", key)

    def unfinished(self) -> list[Unfinished]:
        """Attempts that have not ended: at a keeper's start, those that died with its predecessor."""
        found = []
        for job, attempt, token in self._connection.execute(
            "SELECT job, attempt, token FROM attempts WHERE end_number IS NULL ORDER BY rowid"
        ).fetchall():
            leaders = self._connection.execute(
                "SELECT leader FROM leaders WHERE job = ? AND attempt = ?", (job, attempt)
            ).fetchall()
            decoded = tuple(msgspec.json.decode(data, type=Leader) for (data,) in leaders)
            found.append(Unfinished(job=job, attempt=attempt, token=token, leaders=decoded))
        return found

    def held(self) -> list[Held]:
        """Returns the attempts that have not ended, or whose end was not acknowledged."""
        rows = self._connection.execute(
            "SELECT job, attempt, placement, end_number FROM attempts WHERE end_number IS NULL "
            "OR end_number IN (SELECT number FROM events) ORDER BY rowid"
        ).fetchall()
        return [
            Held(
                job=job,
                attempt=attempt,
                placement=msgspec.json.decode(data, type=Placement),
                ended=end_number is not None,
            )
            for job, attempt, data, end_number in rows
        ]

    def unheard(self, after: int) -> list[Happened]:
        """Returns the events with a larger number than ``after`` that were not acknowledged."""
        rows = self._connection.execute(
            "SELECT number, event FROM events WHERE number > ? ORDER BY number", (after,)
        ).fetchall()
        return [Happened(number=number, event=_event_decoder.decode(data)) for number, data in rows]

    def acknowledge(self, number: int) -> None:
        """Removes events up to ``number``, which are in the controller's log."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM events WHERE number <= ?", (number,))

    def prune(self, kept: int = KEPT) -> int:
        """Forgets all but the newest ``kept`` actions and ended attempts; returns the number of removed rows.

        A controller applies again what it issued and saw no outcome of, before it issues anything new: an older action is
        either done or of an attempt that has ended, and is refused from now on.
        """
        with self._transaction() as connection:
            newest = connection.execute("SELECT coalesce(max(id), -1) FROM applied").fetchone()[0]
            floor = max(newest - kept, self._floor(connection))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?)", (str(floor),))
            gone = connection.execute("DELETE FROM applied WHERE id < ?", (floor,)).rowcount
            over = connection.execute(
                "DELETE FROM attempts WHERE end_number IS NOT NULL AND end_number NOT IN (SELECT number FROM events) "
                "AND rowid <= (SELECT max(rowid) FROM attempts) - ?",
                (kept,),
            ).rowcount
        return gone + over

    @staticmethod
    def _floor(connection: sqlite3.Connection) -> int:
        """Actions with a lower id are taken to be applied."""
        found = connection.execute("SELECT value FROM meta WHERE key = 'floor'").fetchone()
        return int(found[0]) if found else 0

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    @staticmethod
    def _note_start(connection: sqlite3.Connection, action: StartJob, token: str) -> bool:
        newest = connection.execute(
            "SELECT coalesce(max(attempt), 0) FROM attempts WHERE job = ?", (action.job,)
        ).fetchone()[0]
        if action.attempt <= newest:
            return False
        connection.execute(
            "INSERT INTO attempts (job, attempt, token, placement) VALUES (?, ?, ?, ?)",
            (action.job, action.attempt, token, msgspec.json.encode(action.placement)),
        )
        return True

    @staticmethod
    def _set_leaders(connection: sqlite3.Connection, key: tuple[str, int], leaders: Sequence[Leader]) -> None:
        rows = [(*key, msgspec.json.encode(leader)) for leader in leaders]
        connection.execute("DELETE FROM leaders WHERE job = ? AND attempt = ?", key)
        connection.executemany("INSERT INTO leaders VALUES (?, ?, ?)", rows)

    @staticmethod
    def _set_placement(connection: sqlite3.Connection, event: ReplicasReleased) -> None:
        connection.execute(
            "UPDATE attempts SET placement = ? WHERE job = ? AND attempt = ?",
            (msgspec.json.encode(event.placement), event.job, event.attempt),
        )

    @staticmethod
    def _emit(connection: sqlite3.Connection, event: AnyEvent) -> int:
        data = msgspec.json.encode(event)
        number = connection.execute("INSERT INTO events (event) VALUES (?)", (data,)).lastrowid
        assert number is not None
        return number

    @contextmanager
    def together(self) -> Iterator[None]:
        """Everything written inside is durable, together, when it is left."""
        with self._transaction():
            yield

    def orphaned(self, count: int, last: str) -> None:
        """Records that processes which had left their attempts were ended; ``last`` names the last of them."""
        with self._transaction() as connection:
            known = connection.execute("SELECT value FROM meta WHERE key = 'orphans'").fetchone()
            total = count + int(known[0]) if known else count
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('orphans', ?)", (str(total),))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('last orphan', ?)", (last,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._connection.in_transaction:  # inside ``together``
            yield self._connection
            return
        Journal.transactions += 1
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                self._connection.execute("ROLLBACK")
            raise
