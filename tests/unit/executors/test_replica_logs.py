from __future__ import annotations

import os
from pathlib import Path

from coadapt.executors.node import replica_logs
from coadapt.executors.node.replica_logs import MAX_LINE, Follower, Housekeeping


def test_part_is_read_from_an_offset_on(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    assert replica_logs.read_part(path, 7) == (b"", 7)
    path.write_bytes(b"0123456789")
    assert replica_logs.read_part(path, 0, 4) == (b"0123", 4)
    assert replica_logs.read_part(path, 4) == (b"456789", 10)
    assert replica_logs.read_part(path, 10) == (b"", 10)
    assert replica_logs.read_part(path, -3) == (b"789", 10)
    assert replica_logs.read_part(path, 99) == (b"0123456789", 10)  # it was emptied


def test_long_file_loses_its_beginning_and_keeps_its_offsets(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * (1 << 20))
        assert not replica_logs.trim(path, 2 << 20)
        assert replica_logs.trim(path, 1 << 19)
        writer.write(b"end")
    size = (1 << 20) + 3
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 <= 1 << 19
    assert replica_logs.read_part(path, size - 3) == (b"end", size)
    data, after = replica_logs.read_part(path, 0, 10)
    assert data == b"a" * 10
    assert after > 1 << 19


def test_old_directories_go_and_those_in_use_stay(tmp_path: Path) -> None:
    for name in ("old.1", "used.1", "fresh.1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.out").touch()
    for path in (
        *tmp_path.glob("old.1/*"),
        *tmp_path.glob("used.1/*"),
        tmp_path / "old.1",
        tmp_path / "used.1",
    ):
        os.utime(path, (1000, 1000))
    Housekeeping(tmp_path, retention_s=3600.0).look(0.0, [tmp_path / "used.1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh.1", "used.1"]
    Housekeeping(tmp_path / "none").look(0.0, [])


def test_follower_gives_each_line_once_and_only_whole(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    follower = Follower(path)
    assert follower.lines() == []
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\ntw")
        assert follower.lines() == ["one"]
        assert follower.lines() == []
        writer.write(b"o\n\xff\n")
        assert follower.lines() == ["two", "\ufffd"]


def test_follower_begins_where_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_text("before\nafter\n")
    assert Follower(path, 7).lines() == ["after"]


def test_follower_passes_over_lines_without_end(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    follower = Follower(path)
    with path.open("ab", buffering=0) as writer:
        for _ in range(3):
            writer.write(b"x" * MAX_LINE)
            assert follower.lines() == []
        writer.write(b"\nshort\n")
        assert follower.lines() == ["short"]


def test_follower_that_falls_behind_skips_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_bytes(b"first\n" + b"filler\n" * (1 << 20) + b"last\n")
    follower = Follower(path)
    found = follower.lines()
    assert found[-1] == "last"
    assert set(found) <= {"filler", "last"}
    assert follower.lines() == []


def test_follower_begins_anew_where_the_file_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_text("a long line\n")
    follower = Follower(path)
    follower.lines()
    path.write_text("new\n")
    assert follower.lines() == ["new"]
