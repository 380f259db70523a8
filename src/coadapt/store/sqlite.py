"""The store in one SQLite file: WAL mode, ``synchronous=FULL``. A transaction that was answered survives a power cut.

Errors of SQLite become an InputError of one line that names the file. Readers never wait for the writer. Log, inbox and
tokens each hold their own connection, for the thread that opened them.
"""

from __future__ import annotations

import os
import re
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from coadapt.errors import InputError, StoreError
from coadapt.store._sql import ADDED, SQLITE, VERSION, Row
from coadapt.store.inbox import SqlInbox
from coadapt.store.log import SqlLog

Synchronous = Literal["FULL", "NORMAL", "OFF"]

_META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
#: The kind of content, written into ``meta``; a file without it is of a version that had this kind only.
EVENTS = "events"


#: SQLite's number for files that can be shortened step by step.
_INCREMENTAL = 2
#: Bytes to which the write-ahead log is shortened after a checkpoint.
_WAL_BYTES = 16 << 20
#: Faults of pages that are listed.
_MOST_FAULTS = 5


class Database:
    """One connection to a store's file; the log and the inbox of a store each hold their own. Implements ``Sql``.

    Args:
        path: The file; it is created if it does not exist, readable by its owner only.
        synchronous: SQLite's setting: whether a transaction survives a power cut.
        holds: What the file holds; a file that holds something else is refused.
        tables: SQL statements that create the tables.
        version: Version of the tables; a file with a newer one is refused.
        timeout_s: Seconds to wait for another writer.
    """

    now = "((julianday('now') - 2440587.5) * 86400.0)"

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Synchronous,
        holds: str = EVENTS,
        tables: str = SQLITE,
        version: int = VERSION,
        timeout_s: float = 30.0,
    ) -> None:
        self.path, self._holds, self._tables, self._version = path, holds, tables, version
        self._synchronous = synchronous
        with suppress(
            OSError
        ):  # of its owner only; never opened where it exists: closing would drop SQLite's locks
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with self.guard():
            # autocommit: every transaction below is written out; sqlite3 opens none implicitly
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
        """A name that no other store has, given when the file was created."""
        ((value,),) = self.rows("SELECT value FROM meta WHERE key = 'identity'")
        return str(value)

    @property
    def name(self) -> str:
        """Name of the store in messages."""
        return str(self.path)

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Runs a query and returns its rows; no cursor stays open that could block a writer."""
        with self.guard(), closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def change(self, sql: str, *values: object) -> int:
        """Runs a statement and returns the number of rows it changed."""
        with self.guard():
            return self._connection.execute(sql, values).rowcount

    def damage(self, *, full: bool) -> list[str]:
        """Returns the first faults in the pages of the file; ``full``: indices are compared with their tables, too."""
        check = "integrity_check" if full else "quick_check"
        try:
            found = [str(text) for (text,) in self.rows(f"PRAGMA {check}({_MOST_FAULTS})")]
        except InputError as error:
            return [str(error)]
        return [] if found == ["ok"] else found

    def next_number(self) -> int:
        """Returns a number that no entry of the inbox has had."""
        found = self.rows("SELECT seq FROM sqlite_sequence WHERE name = 'inbox'")
        return (int(found[0][0]) if found else 0) + 1

    def skip_numbers(self, last: int) -> None:
        """Makes sure that no entry of the inbox gets a number up to ``last``."""
        self.change("DELETE FROM sqlite_sequence WHERE name = 'inbox'")
        self.change("INSERT INTO sqlite_sequence (name, seq) VALUES ('inbox', ?)", last)

    def size(self) -> int:
        """Returns the bytes of all pages; the write-ahead log comes on top, and is short after a checkpoint."""
        ((pages,),), ((page,),) = self.rows("PRAGMA page_count"), self.rows("PRAGMA page_size")
        return int(pages) * int(page)

    def give_back(self, most_bytes: int) -> int:
        """Shortens the file by up to ``most_bytes`` of its free pages; returns by how many bytes.

        A file that was created before there were packs cannot be shortened step by step; ``rebuild`` makes it one.
        """
        page = int(self.rows("PRAGMA page_size")[0][0])
        before = int(self.rows("PRAGMA freelist_count")[0][0])
        if not before or int(self.rows("PRAGMA auto_vacuum")[0][0]) != _INCREMENTAL:
            return 0
        self.rows(f"PRAGMA incremental_vacuum({max(most_bytes // page, 1)})")
        return (before - int(self.rows("PRAGMA freelist_count")[0][0])) * page

    def rebuild(self) -> int:
        """Writes the whole file anew without free pages; returns by how many bytes it became shorter.

        Others wait for it, so this is for a cluster that does not run.
        """
        before = self.size()
        self.rows("PRAGMA auto_vacuum=INCREMENTAL")
        self.rows("VACUUM")
        self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        return max(before - self.size(), 0)

    @property
    def can_shrink(self) -> bool:
        """Whether ``give_back`` works for this file."""
        return int(self.rows("PRAGMA auto_vacuum")[0][0]) == _INCREMENTAL

    @contextmanager
    def transaction(self, *, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """Opens a transaction of the only writer; ``lasting``: durable when it returns."""
        if not lasting and self._synchronous == "FULL":
            with self._synchronised("NORMAL"), self.transaction() as connection:
                yield connection
            return
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

    @contextmanager
    def _synchronised(self, level: Synchronous) -> Iterator[None]:
        self._connection.execute(f"PRAGMA synchronous={level}")
        try:
            yield
        finally:
            self._connection.execute(f"PRAGMA synchronous={self._synchronous}")

    def copy_to(self, path: Path) -> None:
        """Copies the whole file as of one moment, while others read and write; ``path`` must not exist."""
        with self.guard(), closing(sqlite3.connect(path, isolation_level=None)) as copy:
            self._connection.backup(copy, pages=4096, sleep=0.0)

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
            raise StoreError(
                f"store {self.path}: {error}; is the disk full, or the directory not writable?"
            ) from error
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"store {self.path} is damaged or no coadapt store ({error}); restore it, or name a new file"
            ) from error

    def _prepare(self) -> None:
        names = {name for (name,) in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if names and "meta" not in names:
            raise InputError(f"{self.path} is a database of another program; name a new file")
        if not names:
            # only a file without tables takes it
            self._connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self._connection.execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
        if "meta" in names and self._check_version() == self._version and self._needed() <= names:
            return  # opening it must not wait for a writer
        self._connection.execute("PRAGMA journal_mode=WAL")
        with self.transaction() as connection:
            for statement in (_META, *self._tables.split(";")):
                connection.execute(statement)
            first = {"version": str(self._version), "identity": uuid.uuid4().hex, "holds": self._holds}
            for key, value in first.items():
                connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
            if self._holds == EVENTS:
                self._add_columns(connection)
            version = str(self._version)
            connection.execute(
                "UPDATE meta SET value = ? WHERE key = 'version' AND value <> ?", (version, version)
            )

    @staticmethod
    def _add_columns(connection: sqlite3.Connection) -> None:
        for table, (column, kind) in ADDED.items():
            known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if column not in known:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")

    def _needed(self) -> set[str]:
        return set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", self._tables))

    def _check_version(self) -> int:
        found = self.rows("SELECT value FROM meta WHERE key = 'version'")
        version = str(found[0][0]) if found else "none"
        if not version.isdigit():
            raise InputError(f"{self.path} is a database of another program; name a new file")
        if int(version) > self._version:
            raise InputError(
                f"store {self.path} has schema {version}, this coadapt reads up to {self._version}; "
                "use the newer coadapt that wrote it"
            )
        held = self.rows("SELECT value FROM meta WHERE key = 'holds'")
        holds = str(held[0][0]) if held else EVENTS
        if holds != self._holds:
            raise InputError(f"store {self.path} holds {holds}, not {self._holds}; name another file")
        return int(version)


class SqliteLog(SqlLog):
    """The log in a file."""

    def __init__(self, path: Path | str, *, synchronous: Synchronous = "FULL") -> None:
        super().__init__(Database(Path(path), synchronous=synchronous))


class SqliteInbox(SqlInbox):
    """The inbox in a file; it may be the log's."""

    def __init__(self, path: Path | str, *, synchronous: Synchronous = "FULL") -> None:
        super().__init__(Database(Path(path), synchronous=synchronous))
