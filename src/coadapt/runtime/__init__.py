"""The ports, and the one loop that joins scheduler, executor, inbox and timers."""

from coadapt.runtime.loop import Loop, Saver
from coadapt.runtime.ports import EventLog, Executor, Feed, Holder, Inbox, LeasedLog, Make, Running

__all__ = ["EventLog", "Executor", "Feed", "Holder", "Inbox", "LeasedLog", "Loop", "Make", "Running", "Saver"]
