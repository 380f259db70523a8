"""The ports, and the one loop that joins scheduler, executor, inbox and timers."""

from coadapt.model.lease import Holder, Make
from coadapt.runtime.loop import Loop, Saver
from coadapt.runtime.ports import (
    Cursor,
    EventLog,
    Executor,
    Feed,
    Inbox,
    JobFiles,
    JobSource,
    LeasedLog,
    LoopExecutor,
    Running,
)
from coadapt.wire.node_messages import Launch, LogSlice, SavedCheckpoint, Stream

__all__ = [
    "Cursor",
    "EventLog",
    "Executor",
    "Feed",
    "Holder",
    "Inbox",
    "JobFiles",
    "JobSource",
    "Launch",
    "LeasedLog",
    "LogSlice",
    "Loop",
    "LoopExecutor",
    "Make",
    "Running",
    "SavedCheckpoint",
    "Saver",
    "Stream",
]
