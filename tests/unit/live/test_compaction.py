"""Packs in a store: what is read and found, what a crash leaves, how snapshots and old records go; on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coadapt.errors import InvariantError, StoreError
from coadapt.live.compaction import Rules, compact_store, next_stretch
from coadapt.model import Configuration, JobStarted, Measured, Measurement, Record, ReportsMerged
from coadapt.runtime.controller import forget_old
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.saved_state import load, save
from coadapt.server.log_follower import History
from coadapt.store import open_store
from coadapt.store.log import SqlLog
from coadapt.store.sqlite import Database
from tests import postgres_server
from tests.builders import a_cluster, a_trained_job, every_policy
from tests.properties.world import World, live
from tests.waiting import DEADLINE_S

#: Records of the log, and records between two snapshots.
LENGTH, EVERY = 1000, 100


def a_log() -> list[Record]:
    """A job that starts and then reports every 10 s."""
    world = World(cluster=a_cluster("1x2"), submissions=((0.0, "job-0", a_trained_job(1, at_most=2)),))
    records, _ = live(world, every_policy()["fifo"]())
    began = next(place for place, r in enumerate(records) if isinstance(r.event, JobStarted))
    found, at = records[: began + 1], records[began].at
    while len(found) < LENGTH:
        number = len(found)
        m = Measurement(
            config=Configuration(nodes=1, replicas=1 + number % 2, atomic_batch=8),
            step_s=0.1 + number / 7e4,
            step_var=1e-4 / number,
            grad_sqr=1.0 / number,
            grad_var=3.0 + number / 11,
            work=8.0 * number,
            metrics={"loss": 1 / (number + 1)},
        )
        event = Measured(job="job-0", attempt=1, measurement=m)
        found.append(Record(seq=number, at=at + 10.0 * (number - began), event=event))
    return found


RECORDS = a_log()
END = RECORDS[-1].at
#: Marks every 100 reports, and packs however short.
QUICK = (1000.0, 150, 1)
AT_ONCE = Rules(0.0, *QUICK)


def filled(log: SqlLog) -> SqlLog:
    state = SchedulerState()
    for at in range(0, LENGTH, EVERY):
        batch = RECORDS[at : at + EVERY]
        log.append(batch)
        for record in batch:
            state.apply(record)
        log.save_snapshot(state.seq, save(state))
    return log


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlLog]:
    # all snapshots stay, so that there are many stretches
    monkeypatch.setattr("coadapt.store.log.SNAPSHOTS", 100)
    where = str(tmp_path / "store.db")
    if request.param == "postgres":
        where = f"{request.getfixturevalue('postgres')}&schema=t{abs(hash(str(tmp_path)))}"
    found = open_store(where, synchronous="OFF").log()
    yield filled(found)
    found.close()


def folded(log: SqlLog, until: int = LENGTH) -> bytes:
    state = SchedulerState()
    for record in log.read():
        if record.seq > until:
            break
        state.apply(record)
    return save(state)


def expected(until: int = LENGTH) -> bytes:
    state = SchedulerState()
    for record in RECORDS[: until + 1]:
        state.apply(record)
    return save(state)


def test_old_stretches_become_packs_and_the_state_stays(log: SqlLog) -> None:
    done = compact_store(log, now=END, rules=Rules(1500.0, *QUICK))
    # all that is 150 reports old, up to a mark
    until = log.packed_until()
    assert 700 < until < 850
    assert (done.records, done.unmerged) == (until + 1, 0)
    assert RECORDS[until].at // 1000 < RECORDS[until + 1].at // 1000
    assert done.kept < 150
    assert (log.first(), log.last()) == (0, LENGTH - 1)
    assert folded(log) == expected()
    for seq in range(100, until):
        if RECORDS[seq].at // 1000 < RECORDS[seq + 1].at // 1000:
            assert folded(log, seq) == expected(seq), "a mark is a moment that is kept"
    seqs = [record.seq for record in log.read()]
    assert seqs == sorted(seqs)
    assert seqs[until - LENGTH + 1 :] == list(range(until + 1, LENGTH))
    assert any(isinstance(record.event, ReportsMerged) for record in log.read())


def test_records_are_found_by_their_number_and_read_from_anywhere(log: SqlLog) -> None:
    compact_store(log, now=END, rules=AT_ONCE)
    there = list(log.read())
    until = log.packed_until()
    assert until > 750
    for after in (-1, 0, 57, 99, 100, 450, until - 1, until, until + 1, 998):
        assert list(log.read(after)) == [record for record in there if record.seq > after]
    for record in there:
        assert log.find(record.seq) == record
    gone = set(range(LENGTH)) - {record.seq for record in there}
    assert gone
    assert all(log.find(seq) is None for seq in (*sorted(gone)[:50], LENGTH, -1))


def test_crash_between_any_two_steps_leaves_a_log_that_is_right(
    log: SqlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlLog.clear_packed, "__defaults__", (7,))
    steps = 0

    class CrashError(Exception):
        pass

    def crash() -> None:
        nonlocal steps
        steps += 1
        if steps % 13 == 0:
            raise CrashError

    crashes = 0
    while next_stretch(log, END, AT_ONCE) or log.clear_packed(1):
        try:
            compact_store(log, now=END, rules=AT_ONCE, most=1, beat=crash)
        except CrashError:
            crashes += 1
            assert folded(log) == expected()
    assert crashes > 3
    assert folded(log) == expected()


def test_pack_is_refused_where_the_log_is_not_what_was_packed(log: SqlLog) -> None:
    with pytest.raises(InvariantError, match="packs begin anew at 0"):
        log.pack(100, 199, RECORDS[100:200], b"")
    log.pack(0, 99, RECORDS[:100], b"")
    with pytest.raises(InvariantError, match="packs begin anew at 100"):
        log.pack(0, 99, RECORDS[:100], b"")
    with pytest.raises(InvariantError, match="cannot be packed"):
        log.pack(100, LENGTH + 5, RECORDS[100:], b"")


def test_damaged_pack_is_one_clear_line(log: SqlLog) -> None:
    compact_store(log, now=END, rules=AT_ONCE, most=1)
    log._database.change("UPDATE packs SET data = ?", b"\xfd7zXZ nonsense")
    with pytest.raises(StoreError, match="pack at record 0 cannot be read"):
        list(log.read())


def test_merge_that_would_change_the_state_is_not_made(log: SqlLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coadapt.scheduler.state.compaction.plain", lambda values, names: {})
    done = compact_store(log, now=END, rules=AT_ONCE, most=1)
    assert done.unmerged == 1
    assert done.kept == done.records > 50
    assert folded(log) == expected()


def test_few_snapshots_stay_between_packs_and_old_packs_are_forgotten(
    log: SqlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coadapt.store.log.ANCHOR_S", 1e9)
    monkeypatch.setattr("coadapt.store.log.ANCHOR_PACKED", 15)
    compact_store(log, now=END, rules=AT_ONCE)
    seqs = log.snapshot_seqs()
    assert seqs[-2:] == [899, 999]
    assert log.packed_until() in seqs
    assert 3 < len(seqs) < 9
    while forget_old(log, END - 3000.0):
        pass
    (first, *_) = log.snapshot_seqs()
    assert 0 < first < log.first() == first + 1
    state = load(next(data for seq, data in _snapshots(log) if seq == first))
    assert save(state) == expected(first)
    for record in log.read(first):
        state.apply(record)
    assert save(state) == expected()
    # and it goes on from there
    assert compact_store(log, now=END, rules=AT_ONCE).records == 0


def test_log_whose_beginning_was_forgotten_before_is_packed_from_its_snapshot(log: SqlLog) -> None:
    log.forget(299)
    done = compact_store(log, now=END, rules=AT_ONCE)
    assert (log.first(), done.unmerged) == (299, 0)
    assert log.packed_until() > 750
    state = load(dict(_snapshots(log))[299])
    for record in log.read(299):
        state.apply(record)
    assert save(state) == expected()


def _snapshots(log: SqlLog) -> Iterator[tuple[int, bytes]]:
    found = log.newest_snapshot()
    while found is not None:
        yield found
        found = log.newest_snapshot(before=found[0])


def test_space_is_returned_and_an_old_file_can_be_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    log = filled(open_store(path, synchronous="OFF").log())
    before = log.size()
    compact_store(log, now=END, rules=AT_ONCE)
    assert log.size() < 0.8 * before
    log.close()
    database = Database(path, synchronous="OFF")
    assert database.can_shrink
    assert int(database.rows("PRAGMA freelist_count")[0][0]) == 0
    database.rows("PRAGMA auto_vacuum=NONE")
    database.rows("VACUUM")
    assert not database.can_shrink
    database.rebuild()
    assert database.can_shrink
    database.close()


def test_histories_of_jobs_follow_the_merged_reports(tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    log = filled(open_store(where, synchronous="OFF").log())

    def read(seqs: Sequence[int]) -> list[Record]:
        return [record for seq in seqs if (record := log.find(seq)) is not None]

    history = History(read)
    history.look_back(open_store(where).log, LENGTH - 101)
    assert history.complete.wait(DEADLINE_S)
    for record in RECORDS[-100:]:
        history.note(record)
    before = history.changes("job-0")
    assert len(history.measured("job-0")) > 900
    compact_store(log, now=END, rules=AT_ONCE)
    for _ in range(2):
        history.repack(open_store(where).log)
        measured = history.measured("job-0")
        there = [r.seq for r in log.read() if isinstance(r.event, Measured | ReportsMerged)]
        assert measured == there
        assert len(history.records(measured)) == len(measured)
        assert history.changes("job-0") == before
    log.close()
