"""The log and the inbox in one SQLite file: durable when the call returns, readable while written.

WAL mode, ``synchronous=FULL``: a transaction that was answered survives a power cut. Readers never
wait for the writer. There is one writer: a controller takes the lease before it folds the log, and
every append checks, inside its own transaction, that the lease is still its own. So a controller that
was stopped for longer than its lease, and then goes on, cannot write, and what is not written is not
done. Expiry only decides who may take over; safety does not hang on clocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from coadapt.errors import InputError, InvariantError
from coadapt.model import AnyEvent, Record, decode, encode
from coadapt.store._database import Database, Synchronous

_PAGE = 1000


class SqliteLog:
    """Implements ``runtime.EventLog`` on a file; see the module for its lease."""

    def __init__(self, path: Path | str, *, synchronous: Synchronous = "FULL") -> None:
        self._database = Database(Path(path), synchronous=synchronous)
        self._owner: str | None = None

    @property
    def identity(self) -> str:
        """A name no other store has; executors use it to refuse the actions of another log."""
        return self._database.identity

    def append(self, records: Sequence[Record]) -> None:
        """See ``EventLog``. One transaction: all of the records, or none."""
        if not records:
            return
        rows = [(record.seq, encode(record)) for record in records]
        with self._database.transaction() as connection:
            self._check_lease(connection)
            last = connection.execute("SELECT coalesce(max(seq), -1) FROM log").fetchone()[0]
            for offset, (seq, _) in enumerate(rows):
                if seq != last + 1 + offset:
                    raise InvariantError(
                        f"store {self._database.path}: record {seq} appended after {last + offset}; "
                        "another controller wrote to this store, or a record was lost"
                    )
            connection.executemany("INSERT INTO log (seq, data) VALUES (?, ?)", rows)

    def read(self, after: int = -1) -> Iterable[Record]:
        """See ``EventLog``. Read page by page, so that a slow reader holds nothing up."""
        while True:
            page = self._database.rows(
                "SELECT seq, data FROM log WHERE seq > ? ORDER BY seq LIMIT ?", after, _PAGE
            )
            for seq, data in page:
                if seq != after + 1:
                    raise InputError(f"store {self._database.path} is damaged: record {after + 1} is missing")
                after += 1
                yield _decoded(data, f"record {seq}", self._database.path)
            if len(page) < _PAGE:
                return

    def last(self) -> int:
        """See ``EventLog``."""
        ((seq,),) = self._database.rows("SELECT coalesce(max(seq), -1) FROM log")
        return int(str(seq))

    def acquire(
        self, owner: str, ttl_s: float, now: float, *, gone: Callable[[str], bool] = lambda owner: False
    ) -> None:
        """Takes the writer's lease, or renews it; InputError while another owner has it.

        ``gone`` says whether another owner is known to be dead (its process no longer exists), so that
        a controller that was killed is replaced at once and not after ``ttl_s``.
        """
        with self._database.transaction() as connection:
            found = connection.execute("SELECT owner, expires_at FROM lease").fetchone()
            if found is not None and found[0] != owner and now < found[1] and not gone(found[0]):
                raise InputError(
                    f"store {self._database.path} is in use by controller {found[0]} for another "
                    f"{found[1] - now:.0f} s; stop it first, or wait"
                )
            connection.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?)", (owner, now + ttl_s))
        self._owner = owner

    def release(self) -> None:
        """Gives the lease back, so that the next controller need not wait."""
        if self._owner is not None:
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM lease WHERE owner = ?", (self._owner,))
            self._owner = None

    def close(self) -> None:
        """Closes the file; the lease stays until it expires or is released."""
        self._database.close()

    def _check_lease(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("SELECT owner FROM lease").fetchone()
        holder = None if found is None else str(found[0])
        if self._owner is not None and holder != self._owner:
            raise InvariantError(
                f"store {self._database.path}: controller {self._owner} lost its lease to {holder or 'nobody'}; "
                "it must end and start anew"
            )


class SqliteInbox:
    """Implements ``runtime.Inbox``; may live in the log's file, and be written by other processes."""

    def __init__(self, path: Path | str, *, synchronous: Synchronous = "FULL") -> None:
        self._database = Database(Path(path), synchronous=synchronous)

    def put(self, event: AnyEvent, key: str | None = None) -> int:
        """See ``Inbox``. With ``key``, putting the same event again gives the number it already has."""
        data = encode(Record(seq=0, at=0.0, event=event))
        with self._database.transaction() as connection:
            if key is not None:
                found = connection.execute("SELECT number, data FROM inbox WHERE key = ?", (key,)).fetchone()
                if found is not None and bytes(found[1]) != data:
                    raise InputError(f"key {key!r} was used for another request; use a new key")
                if found is not None:
                    return int(found[0])
            cursor = connection.execute("INSERT INTO inbox (key, data) VALUES (?, ?)", (key, data))
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """See ``Inbox``."""
        rows = self._database.rows(
            "SELECT number, data FROM inbox WHERE acknowledged = 0 ORDER BY number LIMIT ?", _PAGE
        )
        for number, data in rows:
            yield int(str(number)), _decoded(data, f"inbox entry {number}", self._database.path).event

    def acknowledge(self, number: int) -> None:
        """See ``Inbox``. The row stays, for its key."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE inbox SET acknowledged = 1 WHERE number = ?", (number,))

    def close(self) -> None:
        """Closes the file."""
        self._database.close()


def _decoded(data: object, what: str, path: Path) -> Record:
    try:
        return decode(data if isinstance(data, bytes) else b"")
    except msgspec.MsgspecError as error:
        raise InputError(f"store {path} is damaged: {what} cannot be read ({error})") from error
