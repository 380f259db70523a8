"""The store in PostgreSQL, by its URL: for a controller whose disk is not to be trusted with the log."""

from __future__ import annotations

from coadapt.store._postgres import PostgresDatabase
from coadapt.store.inbox import SqlInbox
from coadapt.store.log import SqlLog


class PostgresLog(SqlLog):
    """The log in a database."""

    def __init__(self, url: str) -> None:
        super().__init__(PostgresDatabase(url))


class PostgresInbox(SqlInbox):
    """The inbox in a database."""

    def __init__(self, url: str) -> None:
        super().__init__(PostgresDatabase(url))
