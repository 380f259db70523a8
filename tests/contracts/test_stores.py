"""Every log and every inbox, by the published suites."""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from coadapt.errors import InputError, InvariantError
from coadapt.model import AnyEvent, CancelRequested
from coadapt.runtime import EventLog, Inbox, LeasedLog
from coadapt.store import MemoryLog, SqliteInbox, SqliteLog, open_store
from coadapt.store._sql import VERSION
from coadapt.store.audit_log import Attribution
from coadapt.store.inbox import Answered, Asked, SqlInbox
from coadapt.store.log import SqlLog
from coadapt.store.token_table import Token, token_hash
from coadapt.testing import EVERY_EVENT, InboxConformance, LeaseConformance, StoreConformance
from coadapt.testing.stores import records
from tests import postgres_server


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


class TestSqliteLease(LeaseConformance):
    def open(self, directory: Path) -> LeasedLog:
        return SqliteLog(directory / "store.db")

    def close(self, log: LeasedLog) -> None:
        assert isinstance(log, SqliteLog)
        log.close()


class TestSqliteInbox(InboxConformance):
    def open(self, directory: Path) -> Inbox:
        return SqliteInbox(directory / "store.db")

    def close(self, inbox: Inbox) -> None:
        assert isinstance(inbox, SqliteInbox)
        inbox.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.server() as url:
        yield url


class InPostgres:
    """One schema for each test's directory."""

    url: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: str) -> None:
        type(self).url = postgres

    def where(self, directory: Path) -> str:
        return f"{self.url}&schema=t{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


class TestPostgresLog(InPostgres, StoreConformance):
    def open(self, directory: Path) -> EventLog:
        return open_store(self.where(directory)).log()

    def close(self, log: EventLog) -> None:
        assert isinstance(log, SqlLog)
        log.close()


class TestPostgresLease(InPostgres, LeaseConformance):
    def open(self, directory: Path) -> LeasedLog:
        return open_store(self.where(directory)).log()

    def close(self, log: LeasedLog) -> None:
        assert isinstance(log, SqlLog)
        log.close()


class TestPostgresInbox(InPostgres, InboxConformance):
    def open(self, directory: Path) -> Inbox:
        return open_store(self.where(directory)).inbox()

    def close(self, inbox: Inbox) -> None:
        assert isinstance(inbox, SqlInbox)
        inbox.close()


def test_samples_cover_every_event_type() -> None:
    assert {type(event) for event in EVERY_EVENT} == set(typing.get_args(AnyEvent))


def _check_fenced_inbox(where: str) -> None:
    store = open_store(where)
    one, other = store.log(), store.log()
    one.acquire("one", 10.0, now=100.0)
    fenced, plain = store.inbox(lambda: one.epoch), store.inbox()
    first, second = plain.put(CancelRequested(job="a")), plain.put(CancelRequested(job="b"))
    fenced.acknowledge(first)
    other.acquire("other", 10.0, now=110.0)
    for write in (lambda: fenced.acknowledge(second), fenced.prune):
        with pytest.raises(InvariantError, match="was lost to a controller of epoch"):
            write()
    assert [number for number, _ in plain.take()] == [second]
    for each in (one, other, fenced, plain):
        each.close()


def test_controller_that_lost_its_lease_acknowledges_nothing(tmp_path: Path) -> None:
    _check_fenced_inbox(str(tmp_path / "store.db"))


class TestPostgresFence(InPostgres):
    def test_controller_that_lost_its_lease_acknowledges_nothing(self, tmp_path: Path) -> None:
        _check_fenced_inbox(self.where(tmp_path))

    def test_audit_log_is_written_with_the_change(self, tmp_path: Path) -> None:
        store = open_store(self.where(tmp_path))
        inbox, audit = store.inbox(), store.audit()
        who = Attribution(actor="ada", role="user", via="token", address="10.0.0.1", detail="1 GPU")
        inbox.submit_all([(lambda number: CancelRequested(job="a"), None)], [who])
        (entry,) = audit.read(actor="ada", subject="a", since=0.0, before=10)
        assert (entry.action, entry.detail, entry.address) == ("cancel", "1 GPU", "10.0.0.1")
        store.backup(tmp_path / "copy.db")
        copy = open_store(tmp_path / "copy.db").audit()
        assert copy.read() == [entry]
        assert audit.prune(-1.0) == 1
        for each in (inbox, audit, copy):
            each.close()

    def test_store_of_the_version_before_gets_the_audit_log(self, tmp_path: Path) -> None:
        store = open_store(self.where(tmp_path))
        with closing(store.log()) as log:
            log._database.change("DROP TABLE audit")
            log._database.change("UPDATE meta SET value = '2' WHERE key = 'version'")
        with closing(store.audit()) as audit:
            assert audit.read() == []
            ((version,),) = audit._database.rows("SELECT value FROM meta WHERE key = 'version'")
            assert version == str(VERSION)

    def test_store_of_the_version_before_gets_nodes_of_tokens_and_answers(self, tmp_path: Path) -> None:
        store = open_store(self.where(tmp_path))
        with closing(store.log()) as log:
            log._database.change("DROP TABLE answers")
            log._database.change("ALTER TABLE tokens DROP COLUMN nodes")
            log._database.change("UPDATE meta SET value = '4' WHERE key = 'version'")
        with closing(store.tokens()) as tokens, closing(store.inbox()) as inbox:
            tokens.add(Token(name="m", role="node", made_at=1.0, nodes=("a", "b-*")), token_hash("x"))
            assert [token.nodes for token in tokens.all()] == [("a", "b-*")]
            inbox.submit_all([(lambda number: CancelRequested(job="a"), "k")], asked=[Asked("d", "note")])
            assert inbox.answered("k") == Answered(1, Asked("d", "note"))
            store.backup(tmp_path / "copy.db")
        with closing(open_store(tmp_path / "copy.db").inbox()) as copy:
            assert copy.answered("k") == Answered(1, Asked("d", "note"))


class TestPostgresStore(InPostgres):
    def test_backup_is_a_file_that_can_be_served(self, tmp_path: Path) -> None:
        store = open_store(self.where(tmp_path))
        log, inbox, tokens = store.log(), store.inbox(), store.tokens()
        log.append(records(0, *EVERY_EVENT))
        log.save_snapshot(3, b"state")
        log.forget(2)
        log.bind("here")
        log.acquire("me", 10.0, 100.0)
        inbox.acknowledge(inbox.put(CancelRequested(job="a"), key="k"))
        inbox.put(CancelRequested(job="b"))
        inbox.acknowledge(inbox.put(CancelRequested(job="c")))
        inbox.prune()
        tokens.add(Token(name="ann", role="user", made_at=1.0), token_hash("secret"))
        store.backup(tmp_path / "copy.db")
        copy = open_store(tmp_path / "copy.db")
        assert list(copy.log().read(1)) == list(log.read(1))
        assert copy.log().first() == 2
        assert copy.log().newest_snapshot() == (3, b"state")
        assert (copy.log().identity, copy.log().holder()) == (log.identity, None)
        copy.log().bind("there")
        assert list(copy.inbox().take()) == list(inbox.take())
        assert copy.inbox().put(CancelRequested(job="a"), key="k") == 1
        assert copy.inbox().put(CancelRequested(job="d")) == 4
        assert copy.tokens().find(token_hash("secret")) == tokens.find(token_hash("secret"))
        for each in (log, inbox, tokens):
            each.close()

    def test_backup_is_restored_to_an_empty_schema_and_to_no_other(self, tmp_path: Path) -> None:
        source = open_store(tmp_path / "store.db")
        log, inbox, tokens = source.log(), source.inbox(), source.tokens()
        log.append(records(0, *EVERY_EVENT))
        log.save_snapshot(3, b"state")
        log.pack(0, 3, list(log.read())[:4], b"state")
        while log.clear_packed():
            pass
        inbox.acknowledge(inbox.put(CancelRequested(job="a")))
        inbox.put(CancelRequested(job="b"), key="k")
        tokens.add(Token(name="ann", role="user", made_at=1.0), token_hash("secret"))
        expected = list(log.read())
        for each in (log, inbox, tokens):
            each.close()
        target = open_store(self.where(tmp_path))
        target.fill_from(tmp_path / "store.db")
        log, inbox = target.log(), target.inbox()
        assert list(log.read()) == expected
        assert (log.newest_snapshot(), log.packed_until()) == ((3, b"state"), 3)
        assert [number for number, _ in inbox.take()] == [2]
        assert inbox.put(CancelRequested(job="c")) == 3
        with pytest.raises(InputError, match="is not empty"):
            target.fill_from(tmp_path / "store.db")
        log.close()
        inbox.close()

    def test_password_is_in_no_message(self, postgres: str) -> None:
        with pytest.raises(InputError) as error:
            open_store("postgresql://ann:secret@127.0.0.1:1/db").log()
        assert "secret" not in str(error.value)
        assert "ann@127.0.0.1:1/db" in str(error.value)
        assert "\n" not in str(error.value)

    def test_connection_that_broke_is_made_anew(self, tmp_path: Path) -> None:
        log = open_store(self.where(tmp_path)).log()
        log.append(records(0, CancelRequested(job="a")))
        with pytest.raises(InputError):
            log._database.rows("SELECT pg_terminate_backend(pg_backend_pid())")
        assert log.last() == 0
        log.append(records(1, CancelRequested(job="b")))
        log.close()
