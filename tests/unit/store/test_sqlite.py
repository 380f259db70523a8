from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError, InvariantError
from coadapt.model import CancelRequested, JobSpec, JobSubmitted, Record, Woke, encode
from coadapt.store import SqliteInbox, SqliteLog
from coadapt.store._sql import VERSION


def woke(seq: int) -> Record:
    return Record(seq=seq, at=float(seq), event=Woke())


def a_log(path: Path, records: int = 0) -> SqliteLog:
    log = SqliteLog(path / "store.db", synchronous="OFF")
    log.append([woke(seq) for seq in range(records)])
    return log


def one_line(error: pytest.ExceptionInfo[Exception], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_log_asks_for_full_durability_unless_told_otherwise(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "store.db")
    assert log._database.rows("PRAGMA synchronous") == [(2,)]
    assert log._database.rows("PRAGMA journal_mode") == [("wal",)]


def test_log_stores_the_bytes_of_encode(tmp_path: Path) -> None:
    record = Record(seq=0, at=0.1 + 0.2, event=JobSubmitted(job="ä", spec=JobSpec(name="x")))
    a_log(tmp_path).append([record])
    found = sqlite3.connect(tmp_path / "store.db").execute("SELECT data FROM log").fetchall()
    assert found == [(encode(record),)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=8))
def test_log_reads_the_same_however_appends_were_cut(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = a_log(Path(directory))
        expected: list[Record] = []
        for size in sizes:
            batch = [woke(len(expected) + i) for i in range(size)]
            log.append(batch)
            expected += batch
        assert list(log.read()) == expected
        assert log.last() == len(expected) - 1
        log.close()


def test_append_that_is_refused_leaves_nothing_of_it(tmp_path: Path) -> None:
    log = a_log(tmp_path, records=2)
    with pytest.raises(InvariantError, match="record 4 appended after 2"):
        log.append([woke(2), woke(4)])
    assert log.last() == 1
    log.append([woke(2)])


def test_second_writer_is_noticed(tmp_path: Path) -> None:
    one, other = a_log(tmp_path, records=1), SqliteLog(tmp_path / "store.db")
    one.append([woke(1)])
    with pytest.raises(InvariantError, match="another controller") as error:
        other.append([woke(1)])
    one_line(error, "store.db")


def test_log_is_read_while_another_process_writes(tmp_path: Path) -> None:
    log = a_log(tmp_path, records=3)
    script = (
        "import sys; from coadapt.store import SqliteLog; from coadapt.model import Record, Woke\n"
        "log = SqliteLog(sys.argv[1], synchronous='OFF')\n"
        "for seq in range(3, 2000): log.append([Record(seq=seq, at=float(seq), event=Woke())])\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "store.db"]) as writer:
        lengths = [3]
        while writer.poll() is None:
            seqs = [record.seq for record in log.read()]
            assert seqs == list(range(len(seqs)))
            lengths.append(len(seqs))
    assert writer.returncode == 0
    assert lengths == sorted(lengths)
    assert log.last() == 1999


def test_newer_schema_is_refused(tmp_path: Path) -> None:
    a_log(tmp_path).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    with pytest.raises(InputError) as error:
        a_log(tmp_path)
    one_line(error, "schema 99", f"up to {VERSION}", "newer coadapt")


def test_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(InputError) as error:
        a_log(tmp_path)
    one_line(error, "another program")
    assert (tmp_path / "store.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"hello, I am a text file\n" * 100, b"SQLite format 3\0 and no more"])
def test_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    with pytest.raises(InputError) as error:
        a_log(tmp_path)
    one_line(error, "store.db")
    assert (tmp_path / "store.db").read_bytes() == content


def test_truncated_file_is_reported_as_damaged(tmp_path: Path) -> None:
    a_log(tmp_path, records=500).close()
    data = (tmp_path / "store.db").read_bytes()
    (tmp_path / "store.db").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError) as error:
        list(a_log(tmp_path).read())
    one_line(error, "store.db", "damaged")


def test_unreadable_record_is_named(tmp_path: Path) -> None:
    log = a_log(tmp_path, records=3)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE log SET data = x'7b' WHERE seq = 1")
    with pytest.raises(InputError) as error:
        list(log.read())
    one_line(error, "record 1", "damaged")


def test_missing_record_is_named(tmp_path: Path) -> None:
    log = a_log(tmp_path, records=3)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("DELETE FROM log WHERE seq = 1")
    with pytest.raises(InputError) as error:
        list(log.read())
    one_line(error, "record 1 is missing")


def test_missing_directory_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        SqliteLog(tmp_path / "nowhere" / "store.db")
    one_line(error, "nowhere/store.db")


def test_full_disk_refuses_the_append_and_keeps_the_log_whole(tmp_path: Path) -> None:
    log = a_log(tmp_path, records=2)
    pages = log._database.rows("PRAGMA page_count")[0][0]
    log._database.rows(f"PRAGMA max_page_count={pages}")
    large = Record(seq=2, at=2.0, event=CancelRequested(job=os.urandom(100_000).hex()))
    with pytest.raises(InputError) as error:
        log.append([large])
    one_line(error, "full")
    assert [record.seq for record in log.read()] == [0, 1]
    log._database.rows("PRAGMA max_page_count=100000")
    log.append([large])
    assert log.last() == 2


def test_identity_belongs_to_the_file(tmp_path: Path) -> None:
    first = a_log(tmp_path)
    assert first.identity == SqliteLog(tmp_path / "store.db").identity
    assert first.identity != SqliteLog(tmp_path / "other.db").identity


class TestLease:
    def test_second_owner_waits_until_expiry(self, tmp_path: Path) -> None:
        one, other = a_log(tmp_path), a_log(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        with pytest.raises(InputError, match="in use by controller one for another 4 s"):
            other.acquire("other", 10.0, now=106.0)
        one.acquire("one", 10.0, now=108.0)
        with pytest.raises(InputError):
            other.acquire("other", 10.0, now=111.0)
        other.acquire("other", 10.0, now=118.0)

    def test_dead_owner_is_replaced_at_once(self, tmp_path: Path) -> None:
        one, other = a_log(tmp_path), a_log(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        other.acquire("other", 10.0, now=100.0, gone=lambda owner: owner == "one")

    def test_owner_that_lost_the_lease_cannot_append(self, tmp_path: Path) -> None:
        one, other = a_log(tmp_path), a_log(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        one.append([woke(0)])
        other.acquire("other", 10.0, now=110.0)
        with pytest.raises(InvariantError, match="one lost its lease to other"):
            one.append([woke(1)])
        other.append([woke(1)])

    def test_release_lets_the_next_one_in(self, tmp_path: Path) -> None:
        one, other = a_log(tmp_path), a_log(tmp_path)
        one.acquire("one", 10.0, now=100.0)
        one.release()
        other.acquire("other", 10.0, now=100.0)
        one.release()  # not its own any more: nothing happens
        with pytest.raises(InputError):
            one.acquire("one", 10.0, now=100.0)


class TestInbox:
    def test_log_and_inbox_share_a_file(self, tmp_path: Path) -> None:
        log, inbox = a_log(tmp_path, records=2), SqliteInbox(tmp_path / "store.db")
        inbox.put(Woke())
        log.append([woke(2)])
        assert (log.last(), len(list(inbox.take()))) == (2, 1)

    def test_same_key_and_event_is_put_once(self, tmp_path: Path) -> None:
        inbox = SqliteInbox(tmp_path / "store.db", synchronous="OFF")
        event = CancelRequested(job="a")
        number = inbox.put(event, key="k")
        inbox.acknowledge(number)
        assert inbox.put(event, key="k") == number
        assert list(inbox.take()) == []
        assert inbox.put(event) != number

    def test_same_key_for_another_event_is_refused(self, tmp_path: Path) -> None:
        inbox = SqliteInbox(tmp_path / "store.db", synchronous="OFF")
        inbox.put(CancelRequested(job="a"), key="k")
        with pytest.raises(InputError, match="key 'k' was used"):
            inbox.put(CancelRequested(job="b"), key="k")
        assert len(list(inbox.take())) == 1
