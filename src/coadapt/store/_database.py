"""Opens a SQLite file that is ours, and turns SQLite's complaints into one line that names the file."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from coadapt.errors import InputError

Synchronous = Literal["FULL", "NORMAL", "OFF"]

#: Version of the tables below, written into ``meta``. A file with a larger one is refused.
STORE_VERSION = 1

_META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
#: What a store holds, written into ``meta``; a file without it is of a time when there was only this kind.
EVENTS = "events"
_TABLES = """
CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, expires_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS inbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    data BLOB NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS inbox_waiting ON inbox (number) WHERE acknowledged = 0;
"""


class Database:
    """One connection to a store's file; the log and the inbox of a store each hold their own."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Synchronous,
        holds: str = EVENTS,
        tables: str = _TABLES,
        timeout_s: float = 30.0,
    ) -> None:
        self.path, self._holds, self._tables = path, holds, tables
        with self.guard():
            # autocommit: every transaction below is written out; not one is opened behind our back
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=timeout_s)
        try:
            with self.guard():
                self._connection.execute(f"PRAGMA synchronous={synchronous}")
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @property
    def identity(self) -> str:
        """A name no other store has, given when the file was made."""
        ((value,),) = self.rows("SELECT value FROM meta WHERE key = 'identity'")
        return str(value)

    def rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """The rows a query finds; nothing stays open that could hold up a writer."""
        with self.guard(), closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything inside happens, durably, or nothing of it does."""
        with self.guard():
            # the write lock at once: a transaction that reads first could fail when it begins to write
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Closes the connection; what was acknowledged is durable without it."""
        self._connection.close()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turns an error of SQLite's into an InputError; a broken rule of ours passes through."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.OperationalError as error:
            raise InputError(
                f"store {self.path}: {error}; is the disk full, or the directory not writable?"
            ) from error
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"store {self.path} is damaged or no coadapt store ({error}); restore it, or name a new file"
            ) from error

    def _prepare(self) -> None:
        names = {name for (name,) in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if names and "meta" not in names:
            raise InputError(f"{self.path} is a database of another program; name a new file")
        if "meta" in names:
            self._check_version()
        self._connection.execute("PRAGMA journal_mode=WAL")
        with self.transaction() as connection:
            for statement in (_META, *self._tables.split(";")):
                connection.execute(statement)
            first = {"version": str(STORE_VERSION), "identity": uuid.uuid4().hex, "holds": self._holds}
            for key, value in first.items():
                connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))

    def _check_version(self) -> None:
        found = self.rows("SELECT value FROM meta WHERE key = 'version'")
        version = str(found[0][0]) if found else "none"
        if not version.isdigit():
            raise InputError(f"{self.path} is a database of another program; name a new file")
        if int(version) > STORE_VERSION:
            raise InputError(
                f"store {self.path} has schema {version}, this coadapt reads up to {STORE_VERSION}; "
                "use the newer coadapt that wrote it"
            )
        held = self.rows("SELECT value FROM meta WHERE key = 'holds'")
        holds = str(held[0][0]) if held else EVENTS
        if holds != self._holds:
            raise InputError(f"store {self.path} holds {holds}, not {self._holds}; name another file")
