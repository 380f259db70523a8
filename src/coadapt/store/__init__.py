"""Event logs: memory, SQLite."""

from coadapt.store.memory import MemoryLog

__all__ = ["MemoryLog"]
