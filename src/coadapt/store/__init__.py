"""Durable records: event logs, inboxes and tokens of a cluster in one store; pools of past jobs; the ledger of predictions; homes.

- event logs: ``open_store`` gives a ``Store`` (SQLite file or PostgreSQL URL); ``MemoryLog``, ``SqliteLog``, ``SqliteInbox`` alone;
- past jobs in a file: ``read_pool``, ``write_pool``, and what a pool knows: ``pool_rows``, ``too_few_measured``;
- predictions that tools have shown: ``Predictions``, ``Prediction``, ``Kept``, ``kept_predictions``, ``tell_actual``;
- where a live cluster keeps everything: ``Home``.

Names are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.store._sql import Sql
    from coadapt.store.home import Home
    from coadapt.store.memory import MemoryLog
    from coadapt.store.open import Store, open_store
    from coadapt.store.pool_file import pool_rows, read_pool, too_few_measured, write_pool
    from coadapt.store.prediction_ledger import Kept, Prediction, Predictions, kept_predictions, tell_actual
    from coadapt.store.sqlite import SqliteInbox, SqliteLog
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "_sql": ("Sql",),
            "home": ("Home",),
            "memory": ("MemoryLog",),
            "open": ("Store", "open_store"),
            "pool_file": ("pool_rows", "read_pool", "too_few_measured", "write_pool"),
            "prediction_ledger": ("Kept", "Prediction", "Predictions", "kept_predictions", "tell_actual"),
            "sqlite": ("SqliteInbox", "SqliteLog"),
        },
    )

__all__ = [
    "Home",
    "Kept",
    "MemoryLog",
    "Prediction",
    "Predictions",
    "Sql",
    "SqliteInbox",
    "SqliteLog",
    "Store",
    "kept_predictions",
    "open_store",
    "pool_rows",
    "read_pool",
    "tell_actual",
    "too_few_measured",
    "write_pool",
]
