"""The ports, and the one loop that joins scheduler, executor, inbox and timers."""

from coadapt.runtime.loop import Loop
from coadapt.runtime.ports import EventLog, Executor, Feed, Inbox, Running

__all__ = ["EventLog", "Executor", "Feed", "Inbox", "Loop", "Running"]
