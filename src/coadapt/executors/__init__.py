"""The real executors, by name: local processes so far; third parties add theirs by entry points.

``find_executor`` returns the ``ExecutorPlugin`` of a name, ``connect_executor`` a connected ``Executor``;
``LocalExecutor`` is one. Modules are imported when they are first used: the keeper (``python -m
coadapt.executors.node.keeper``) lives as long as the node and must not load numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.executors._base import ExecutorPlugin, connect_executor, find_executor
    from coadapt.executors.local import LocalExecutor
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "_base": ("ExecutorPlugin", "connect_executor", "find_executor"),
            "local": ("LocalExecutor",),
        },
    )

__all__ = [
    "ExecutorPlugin",
    "LocalExecutor",
    "connect_executor",
    "find_executor",
]
