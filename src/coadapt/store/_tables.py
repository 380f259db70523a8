"""The tables of an event store, once for SQLite and once for PostgreSQL: the same names and columns.

Version 2 added snapshots, tokens, and two columns; a store of version 1 gets them when it is opened.
"""

from __future__ import annotations

#: Version of the tables, written into ``meta``. A store with a larger one is refused.
VERSION = 2
#: Columns that version 1 did not have, by table: SQLite and PostgreSQL both add them as they are.
ADDED = {"lease": ("renewed_at", "REAL"), "inbox": ("acknowledged_at", "REAL")}

SQLITE = """
CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
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
    name TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, made_at REAL NOT NULL, expires_at REAL
) WITHOUT ROWID
"""

POSTGRES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (seq BIGINT PRIMARY KEY, data BYTEA NOT NULL);
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
    made_at DOUBLE PRECISION NOT NULL, expires_at DOUBLE PRECISION
)
"""

#: What a backup copies, by table: its columns. Who holds the lease is nobody's business elsewhere.
COPIED = {
    "log": ("seq", "data"),
    "snapshots": ("seq", "data"),
    "inbox": ("number", "key", "data", "acknowledged", "acknowledged_at"),
    "tokens": ("name", "hash", "role", "made_at", "expires_at"),
}
