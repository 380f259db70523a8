"""The store in one SQLite file: WAL mode, ``synchronous=FULL``. A transaction that was answered survives a power cut.

Readers never wait for the writer. Log, inbox and tokens each hold their own connection, for the thread that opened them.
"""

from __future__ import annotations

from pathlib import Path

from coadapt.store._database import Database, Synchronous
from coadapt.store.inbox import SqlInbox
from coadapt.store.log import SqlLog


class SqliteLog(SqlLog):
    """The log in a file."""

    def __init__(self, path: Path | str, *, synchronous: Synchronous = "FULL") -> None:
        super().__init__(Database(Path(path), synchronous=synchronous))


class SqliteInbox(SqlInbox):
    """The inbox in a file; it may be the log's."""

    def __init__(self, path: Path | str, *, synchronous: Synchronous = "FULL") -> None:
        super().__init__(Database(Path(path), synchronous=synchronous))
