"""What log, inbox and tokens need of a database, whichever it is. Placeholders are ``?``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Sql(Protocol):
    """One connection, used by one thread. Errors of the database come as InputError with its name."""

    @property
    def name(self) -> str:
        """How messages call it; no password."""

    #: SQL that gives unix seconds by the database's own clock.
    now: str

    def rows(self, sql: str, *values: object) -> list[Row]:
        """The rows a query finds."""

    def change(self, sql: str, *values: object) -> int:
        """Carries out a statement; how many rows it touched."""

    def transaction(self, *, lasting: bool = True) -> AbstractContextManager[object]:
        """Everything inside happens or nothing of it does; one writer at a time, so that what was read inside stays true.

        ``lasting``: durable when it returns; else a power cut may undo it.
        """

    def next_number(self) -> int:
        """A number that no entry of the inbox has had; inside a transaction."""

    def close(self) -> None:
        """Closes the connection; what was acknowledged is durable without it."""


def meta(sql: Sql, key: str) -> str | None:
    """One of the store's own notes."""
    found = sql.rows("SELECT value FROM meta WHERE key = ?", key)
    return str(found[0][0]) if found else None


def set_meta(sql: Sql, key: str, value: str) -> None:
    """Notes it, inside a transaction."""
    sql.change(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        key,
        value,
    )
