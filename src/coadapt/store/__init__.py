"""Event logs: memory, SQLite, PostgreSQL."""

from coadapt.store.memory import MemoryLog
from coadapt.store.open import Store, open_store
from coadapt.store.sqlite import SqliteInbox, SqliteLog

__all__ = ["MemoryLog", "SqliteInbox", "SqliteLog", "Store", "open_store"]
