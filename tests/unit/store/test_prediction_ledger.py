from __future__ import annotations

import math
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.store import SqliteLog
from coadapt.store.home import home
from coadapt.store.prediction_ledger import Prediction, Predictions, default_file

SHOWN = Prediction(
    tool="watch",
    subject="train.log",
    method="pace",
    value_s=90.0,
    low_s=80.0,
    high_s=None,
    done=0.25,
    shown_at=5.0,
    mark=7,
    mark_s=30.0,
)


def test_what_was_shown_is_read_again_by_another(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "p.db"
    with Predictions(path) as store:
        first, second = store.add(SHOWN), store.add(replace(SHOWN, high_s=100.0, done=None))
    assert 0 < first < second
    with Predictions(path) as store:
        assert store.all() == [replace(SHOWN, id=first), replace(SHOWN, id=second, high_s=100.0, done=None)]
        assert store.one(first).actual_s is None


def test_truth_is_learned_and_may_be_corrected(tmp_path: Path) -> None:
    with Predictions(tmp_path / "p.db") as store:
        number = store.add(SHOWN)
        assert store.learn(number, 100.0).actual_s == 100.0
        assert store.learn(number, 110.0).actual_s == 110.0
        assert store.waiting("watch", "train.log") == []


def test_waiting_are_those_of_the_tool_and_subject_that_are_not_judged(tmp_path: Path) -> None:
    with Predictions(tmp_path / "p.db") as store:
        mine, judged = store.add(SHOWN), store.add(SHOWN)
        store.add(replace(SHOWN, tool="predict"))
        store.add(replace(SHOWN, subject="other.log"))
        store.learn(judged, 1.0)
        assert [each.id for each in store.waiting("watch", "train.log")] == [mine]


@pytest.mark.parametrize("number", [0, -1, 3, 2**63, 10**30])
def test_unknown_id_is_refused_and_says_which_are_kept(tmp_path: Path, number: int) -> None:
    with Predictions(tmp_path / "p.db") as store:
        with pytest.raises(InputError, match=rf"no prediction {number}; none is kept"):
            store.one(number)
        store.add(SHOWN)
        store.add(SHOWN)
        with pytest.raises(InputError, match=rf"no prediction {number}; kept are 1 to 2 in "):
            store.one(number)
        with pytest.raises(InputError):
            store.one(number)


@pytest.mark.parametrize("actual_s", [-1.0, math.nan, math.inf])
def test_truth_that_is_no_time_is_refused(tmp_path: Path, actual_s: float) -> None:
    with Predictions(tmp_path / "p.db") as store:
        number = store.add(SHOWN)
        with pytest.raises(InputError, match="s is not possible"):
            store.learn(number, actual_s)
        assert store.one(number).actual_s is None


@pytest.mark.parametrize("field", ["value_s", "low_s", "high_s", "done", "shown_at"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_not_kept(tmp_path: Path, field: str, value: float) -> None:
    with Predictions(tmp_path / "p.db") as store:
        with pytest.raises(InputError, match="not a number"):
            store.add(replace(SHOWN, **{field: value}))
        assert store.all() == []


@settings(max_examples=20)
@given(limit=st.integers(1, 6), count=st.integers(0, 20))
def test_store_is_bounded_and_the_oldest_go(
    tmp_path_factory: pytest.TempPathFactory, limit: int, count: int
) -> None:
    with Predictions(tmp_path_factory.mktemp("bounded") / "p.db", limit=limit) as store:
        ids = [store.add(SHOWN) for _ in range(count)]
        assert [each.id for each in store.all()] == ids[-limit:]
        assert len(set(ids)) == count  # an id is never given twice: somebody may have written it down


def test_many_write_at_once_from_the_very_first_on(tmp_path: Path) -> None:
    path, failed, together = tmp_path / "new" / "p.db", [], threading.Barrier(6)

    def write(name: str) -> None:
        try:
            together.wait()
            for _ in range(5):
                with Predictions(path, timeout_s=300.0) as store:
                    number = store.add(replace(SHOWN, subject=name))
                    store.learn(number, 1.0)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Predictions(path) as store:
        kept = store.all()
    assert len({each.id for each in kept}) == len(kept) == 30
    assert all(each.actual_s == 1.0 for each in kept)


def test_writer_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with Predictions(path) as store:
        store.add(SHOWN)
    busy = sqlite3.connect(path, isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(InputError, match="locked"):
            Predictions(path, timeout_s=0.0).add(SHOWN)
    finally:
        busy.execute("ROLLBACK")
        busy.close()


@pytest.mark.parametrize("kind", ["junk", "another program", "events", "newer", "directory", "under a file"])
def test_file_that_cannot_be_used_is_an_input_error_and_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p.db"
    if kind == "junk":
        path.write_bytes(b"no database, but long enough to be looked at by SQLite" * 50)
    elif kind == "another program":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE bookmarks (url TEXT)")
        connection.close()
    elif kind == "events":
        SqliteLog(path).close()
    elif kind == "newer":
        Predictions(path).__exit__(None, None, None)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
        connection.close()
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text("")
        path = path / "p.db"
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(InputError) as caught:
        Predictions(path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_predictions_are_no_event_log(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with Predictions(path) as store:
        store.add(SHOWN)
    with pytest.raises(InputError, match="holds predictions, not events"):
        SqliteLog(path)


def test_event_log_of_an_older_coadapt_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SqliteLog(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("DELETE FROM meta WHERE key = 'holds'").rowcount == 1
    connection.close()
    SqliteLog(path).close()


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({"COADAPT_HOME": "/ours", "XDG_DATA_HOME": "/data"}, "/ours"),
        ({"COADAPT_HOME": "", "XDG_DATA_HOME": "/data"}, "/data/coadapt"),
        ({"XDG_DATA_HOME": "relative/is/not/valid"}, "~/.local/share/coadapt"),
        ({"XDG_DATA_HOME": ""}, "~/.local/share/coadapt"),
        ({}, "~/.local/share/coadapt"),
    ],
)
def test_home_is_ours_or_the_users_data_directory(environment: dict[str, str], where: str) -> None:
    assert home(environment) == Path(where).expanduser()


def test_default_file_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path))
    assert default_file() == tmp_path / "predictions.db"


def test_user_without_a_home_is_told_what_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(InputError, match="COADAPT_HOME"):
        home({})
