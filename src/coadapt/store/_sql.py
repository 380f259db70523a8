"""The interface of a database as log, inbox and tokens use it, and the tables of an event store.

SQLite and PostgreSQL implement the interface; placeholders are ``?`` in both. Their tables have the same names and
columns. Version 2 added snapshots, tokens, and two columns, version 3 the audit log, version 4 packs, version 5 nodes of
tokens and answers; an older store gets them when it is opened.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Sql(Protocol):
    """One connection, used by one thread. Errors of the database come as InputError with its name."""

    @property
    def name(self) -> str:
        """Name of the store in messages, without a password."""

    #: SQL that gives unix seconds by the database's own clock.
    now: str

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Runs a query and returns its rows."""

    def change(self, sql: str, *values: object) -> int:
        """Runs a statement and returns the number of rows it changed."""

    def transaction(self, *, lasting: bool = True) -> AbstractContextManager[object]:
        """Opens a transaction. There is one writer at a time, so what was read inside stays true until it ends.

        ``lasting``: durable when it returns; otherwise a power cut may undo it.
        """

    def next_number(self) -> int:
        """Returns a number that no entry of the inbox has had; call it inside a transaction."""

    def skip_numbers(self, last: int) -> None:
        """Makes sure that no entry of the inbox gets a number up to ``last``."""

    def damage(self, *, full: bool) -> list[str]:
        """Returns the faults that the database finds in its own pages; ``full``: also in its indices."""

    def size(self) -> int:
        """Returns the bytes that the store takes."""

    def give_back(self, most_bytes: int) -> int:
        """Returns up to ``most_bytes`` of free space to the system; returns how many. A server does that itself."""

    def close(self) -> None:
        """Closes the connection; what was acknowledged is durable without it."""


def meta(sql: Sql, key: str) -> str | None:
    """Returns the value of ``key`` in the store's table ``meta``; None if there is none."""
    found = sql.rows("SELECT value FROM meta WHERE key = ?", key)
    return str(found[0][0]) if found else None


def set_meta(sql: Sql, key: str, value: str) -> None:
    """Sets the value of ``key`` in the store's table ``meta``; call it inside a transaction."""
    sql.change(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        key,
        value,
    )


#: Version of the tables, written into ``meta``. A store with a larger one is refused.
VERSION = 5
#: Columns that older versions did not have, by table: SQLite and PostgreSQL both add them as they are.
ADDED = {
    "lease": ("renewed_at", "REAL"),
    "inbox": ("acknowledged_at", "REAL"),
    "tokens": ("nodes", "TEXT"),
}

SQLITE = """
CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS packs (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL UNIQUE, at REAL NOT NULL, records INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, expires_at REAL NOT NULL, renewed_at REAL
);
CREATE TABLE IF NOT EXISTS inbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    data BLOB NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0,
    acknowledged_at REAL
);
CREATE INDEX IF NOT EXISTS inbox_waiting ON inbox (number) WHERE acknowledged = 0;
CREATE TABLE IF NOT EXISTS tokens (
    name TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, made_at REAL NOT NULL, expires_at REAL,
    nodes TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL, actor TEXT NOT NULL, role TEXT NOT NULL, via TEXT NOT NULL, address TEXT NOT NULL,
    action TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, number);
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, number INTEGER NOT NULL, asked TEXT NOT NULL, note TEXT NOT NULL, at REAL NOT NULL
) WITHOUT ROWID
"""

POSTGRES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (seq BIGINT PRIMARY KEY, data BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS packs (
    first BIGINT PRIMARY KEY, last BIGINT NOT NULL UNIQUE, at DOUBLE PRECISION NOT NULL, records BIGINT NOT NULL,
    data BYTEA NOT NULL
);
CREATE TABLE IF NOT EXISTS snapshots (seq BIGINT PRIMARY KEY, data BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL, renewed_at DOUBLE PRECISION
);
CREATE TABLE IF NOT EXISTS inbox (
    number BIGSERIAL PRIMARY KEY,
    key TEXT UNIQUE,
    data BYTEA NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0,
    acknowledged_at DOUBLE PRECISION
);
CREATE INDEX IF NOT EXISTS inbox_waiting ON inbox (number) WHERE acknowledged = 0;
CREATE TABLE IF NOT EXISTS tokens (
    name TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
    made_at DOUBLE PRECISION NOT NULL, expires_at DOUBLE PRECISION, nodes TEXT
);
CREATE TABLE IF NOT EXISTS audit (
    number BIGSERIAL PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL, actor TEXT NOT NULL, role TEXT NOT NULL, via TEXT NOT NULL, address TEXT NOT NULL,
    action TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, number);
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, number BIGINT NOT NULL, asked TEXT NOT NULL, note TEXT NOT NULL, at DOUBLE PRECISION NOT NULL
);
ALTER TABLE tokens ADD COLUMN IF NOT EXISTS nodes TEXT
"""

#: What a backup copies, by table: its columns. The lease is not copied: it belongs to the running controller.
COPIED = {
    "log": ("seq", "data"),
    "packs": ("first", "last", "at", "records", "data"),
    "snapshots": ("seq", "data"),
    "inbox": ("number", "key", "data", "acknowledged", "acknowledged_at"),
    "tokens": ("name", "hash", "role", "made_at", "expires_at", "nodes"),
    "audit": ("number", "at", "actor", "role", "via", "address", "action", "subject", "detail"),
    "answers": ("key", "number", "asked", "note", "at"),
}
