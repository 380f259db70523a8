"""Event logs: memory, SQLite."""

from coadapt.store.memory import MemoryLog
from coadapt.store.sqlite import SqliteInbox, SqliteLog

__all__ = ["MemoryLog", "SqliteInbox", "SqliteLog"]
