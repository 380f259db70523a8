"""Stores by their names, backups, tokens, and files of older versions."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.model import CancelRequested, Record, Woke
from coadapt.store import Store, open_store
from coadapt.store.token_table import Token, new_token, token_hash


def records(first: int, count: int) -> list[Record]:
    return [Record(seq=first + i, at=float(i), event=Woke()) for i in range(count)]


def a_store(path: Path) -> Store:
    store = open_store(path / "store.db", synchronous="OFF")
    log = store.log()
    log.append(records(0, 20))
    log.save_snapshot(15, b"state")
    log.bind("home")
    log.acquire("me", 10.0, 100.0)
    log.close()
    inbox = store.inbox()
    inbox.acknowledge(inbox.put(CancelRequested(job="a"), key="k"))
    inbox.put(CancelRequested(job="b"))
    inbox.close()
    return store


def test_new_store_is_its_owners_only(tmp_path: Path) -> None:
    log = open_store(tmp_path / "store.db").log()
    log.append(records(0, 1))
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    log.close()


def test_name_that_is_no_store_is_one_clear_line() -> None:
    with pytest.raises(InputError, match="neither a file nor a URL postgresql://"):
        open_store("mysql://host/db")


def test_backup_has_everything_but_the_lease(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.tokens().add(Token(name="ann", role="user", made_at=1.0), token_hash("secret"))
    target = tmp_path / "copy.db"
    store.backup(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == ["copy.db"]
    copy = open_store(target)
    log, inbox = copy.log(), copy.inbox()
    assert list(log.read()) == list(store.log().read())
    assert log.newest_snapshot() == (15, b"state")
    assert log.identity == store.log().identity
    assert log.holder() is None
    log.bind("another home")
    assert list(inbox.take()) == [(2, CancelRequested(job="b"))]
    assert inbox.put(CancelRequested(job="a"), key="k") == 1
    assert inbox.put(Woke()) == 3
    assert copy.tokens().find(token_hash("secret")) is not None


def test_backup_never_replaces_a_file(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    (tmp_path / "there").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        store.backup(tmp_path / "there")
    with pytest.raises(InputError, match="cannot write"):
        store.backup(tmp_path / "nowhere" / "copy.db")
    assert (tmp_path / "there").read_text() == "mine"


def test_backup_while_a_writer_goes_on_is_of_one_moment(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    log = store.log()
    log.acquire("me", 10.0, 100.0)
    for round_ in range(5):
        log.append(records(20 + round_, 1))
        store.backup(tmp_path / f"copy{round_}.db")
        assert open_store(tmp_path / f"copy{round_}.db").log().last() == 20 + round_


def test_store_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    old = sqlite3.connect(path)
    old.executescript(
        """
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE log (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
        CREATE TABLE lease (one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, expires_at REAL NOT NULL);
        CREATE TABLE inbox (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, data BLOB NOT NULL,
                            acknowledged INTEGER NOT NULL DEFAULT 0);
        INSERT INTO meta VALUES ('version', '1'), ('identity', 'abc'), ('holds', 'events');
        INSERT INTO lease VALUES (1, 'old', 50.0);
        """
    )
    old.execute("INSERT INTO log VALUES (0, ?)", (b'{"seq":0,"at":1.0,"event":{"type":"Woke"}}',))
    old.commit()
    old.close()
    store = open_store(path)
    log, inbox = store.log(), store.inbox()
    assert (log.identity, [record.event for record in log.read()]) == ("abc", [Woke()])
    assert log.holder() is not None
    log.acquire("new", 10.0, 100.0)
    log.append(records(1, 1))
    log.save_snapshot(1, b"x")
    inbox.acknowledge(inbox.put(Woke(), key="k"))
    assert inbox.prune(-1.0) == 1


class TestTokens:
    def test_token_is_found_by_its_hash_alone(self, tmp_path: Path) -> None:
        tokens, secret = open_store(tmp_path / "store.db").tokens(), new_token()
        ann = Token(name="ann", role="admin", made_at=5.0, expires_at=10.0)
        tokens.add(ann, token_hash(secret))
        assert tokens.find(token_hash(secret)) == ann
        assert tokens.find(token_hash(secret + "x")) is None
        assert tokens.all() == [ann]
        assert [ann.expired(9.9), ann.expired(10.0)] == [False, True]
        assert secret.encode() not in (tmp_path / "store.db").read_bytes()

    def test_name_is_given_once(self, tmp_path: Path) -> None:
        tokens = open_store(tmp_path / "store.db").tokens()
        ann = Token(name="ann", role="user", made_at=5.0)
        tokens.add(ann, token_hash("one"))
        with pytest.raises(InputError, match="a token named 'ann' already exists; revoke it first"):
            tokens.add(ann, token_hash("two"))
        assert tokens.remove("ann")
        assert not tokens.remove("ann")
        assert tokens.find(token_hash("one")) is None
        tokens.add(ann, token_hash("two"))

    def test_new_tokens_differ(self) -> None:
        assert len({new_token() for _ in range(100)}) == 100
