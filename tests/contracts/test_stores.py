"""Every log and every inbox, by the published suites."""

from __future__ import annotations

import typing
from pathlib import Path

from coadapt.model import AnyEvent
from coadapt.runtime import EventLog, Inbox
from coadapt.store import MemoryLog, SqliteInbox, SqliteLog
from coadapt.testing import EVERY_EVENT, InboxConformance, StoreConformance


class TestMemoryLog(StoreConformance):
    durable = False

    def open(self, directory: Path) -> EventLog:
        return MemoryLog()


class TestSqliteLog(StoreConformance):
    def open(self, directory: Path) -> EventLog:
        return SqliteLog(directory / "store.db")

    def close(self, log: EventLog) -> None:
        assert isinstance(log, SqliteLog)
        log.close()


class TestSqliteInbox(InboxConformance):
    def open(self, directory: Path) -> Inbox:
        return SqliteInbox(directory / "store.db")

    def close(self, inbox: Inbox) -> None:
        assert isinstance(inbox, SqliteInbox)
        inbox.close()


def test_samples_cover_every_event_type() -> None:
    assert {type(event) for event in EVERY_EVENT} == set(typing.get_args(AnyEvent))
