"""The file of a backup: what it keeps, and that whatever is wrong with it is one clear line."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.store.home_archive import Header, Manifest, new_archive, read_archive, read_header

HEADER = Header(
    coadapt="1.0", schema=3, made_at=5.0, home="/old", home_id="abc", host="box", store="s", format=1
)


def a_backup(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "empty").mkdir(parents=True)
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "größe.txt").write_text("x" * 3000)
    (code / "link").symlink_to("run.sh")
    file = tmp_path / "backup"
    with new_archive(file, HEADER) as archive:
        archive.add_bytes("token", b"secret")
        archive.add_tree("code/abc", code)
        archive.finish(("a-1",), (), ())
    return file


def tree(root: Path) -> dict[str, object]:
    """Every path below, with its mode and content."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = content if path.is_symlink() else (mode, content)
    return found


def test_members_come_back_with_modes_links_and_empty_directories(tmp_path: Path) -> None:
    file, into = a_backup(tmp_path), tmp_path / "into"
    into.mkdir()
    header, manifest = read_archive(file, into)
    assert (header, manifest.unfinished) == (HEADER, ("a-1",))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tree(into / "code" / "abc") == tree(tmp_path / "code")
    assert (into / "token").read_bytes() == b"secret"
    assert stat.S_IMODE((into / "token").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_backup_replaces_no_file_and_an_error_leaves_none(tmp_path: Path) -> None:
    file = a_backup(tmp_path)
    with pytest.raises(InputError, match="exists"), new_archive(file, HEADER):
        pass
    with pytest.raises(InputError, match="cannot write"), new_archive(tmp_path / "other", HEADER) as archive:
        archive.add_file("token", tmp_path / "nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "code"]


def test_file_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    file = a_backup(tmp_path)
    data = file.read_bytes()
    with tarfile.open(file) as tar:
        last = tar.getmember("manifest.json")
    for length in range(0, last.offset_data + last.size, 509):
        file.write_bytes(data[:length])
        with pytest.raises(InputError) as error:
            read_archive(file)
        assert "\n" not in str(error.value)


def test_damage_of_any_byte_is_found_or_does_not_matter(tmp_path: Path) -> None:
    file = a_backup(tmp_path)
    data = file.read_bytes()
    into = tmp_path / "into"
    into.mkdir()
    read_archive(file, into)
    expected = tree(into)

    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(data) - 1), st.integers(1, 255))
    def run(place: int, change: int) -> None:
        damaged = bytearray(data)
        damaged[place] ^= change
        file.write_bytes(damaged)
        there = tmp_path / f"into-{place}-{change}"
        there.mkdir(exist_ok=True)
        try:
            read_archive(file, there)
        except InputError as error:
            said = str(error)
        else:
            said = "fine"
            assert tree(there) == expected
        assert "\n" not in said

    run()


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "code/../../outside"])
def test_names_outside_of_the_home_are_refused(name: str, tmp_path: Path) -> None:
    file = archive_of(tmp_path / "f", member("header.json", msgspec.json.encode(HEADER)), member(name, b"x"))
    into = tmp_path / "in" / "to"
    into.mkdir(parents=True)
    with pytest.raises(InputError, match="not a name inside"):
        read_archive(file, into)
    assert tree(tmp_path / "in") == {"to": (stat.S_IMODE(into.stat().st_mode), None)}


@pytest.mark.parametrize("target", ["/etc", "../../../x", "../../other"])
def test_links_to_the_outside_are_refused(target: str, tmp_path: Path) -> None:
    link = member("code/abc/link", type=tarfile.SYMTYPE, linkname=target)
    file = archive_of(tmp_path / "f", member("header.json", msgspec.json.encode(HEADER)), link)
    with pytest.raises(InputError, match="link to the outside"):
        read_archive(file)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    file = archive_of(
        tmp_path / "f",
        member("header.json", msgspec.json.encode(HEADER)),
        member("code/abc/a", type=tarfile.SYMTYPE, linkname="b"),
        member("code/abc/a/c", b"x"),
        member("manifest.json", msgspec.json.encode(Manifest(members=()))),
    )
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(InputError):
        read_archive(file, into)
    assert list(outside.iterdir()) == []


def test_newer_format_another_file_and_a_bare_store_are_named(tmp_path: Path) -> None:
    newer = msgspec.json.encode({"format": 2, "coadapt": "9.1", "more": 1})
    file = archive_of(tmp_path / "newer", member("header.json", newer))
    with pytest.raises(InputError, match=r"backup format 2, this coadapt reads up to 1; use coadapt 9\.1"):
        read_header(file)
    with pytest.raises(InputError, match="no backup of coadapt"):
        read_header(archive_of(tmp_path / "tar", member("x", b"y")))
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(InputError, match="damaged, or no backup of coadapt"):
        read_header(tmp_path / "text")
    (tmp_path / "db").write_bytes(b"SQLite format 3\0" + bytes(4096))
    with pytest.raises(InputError, match="is a store, not the backup of a home"):
        read_header(tmp_path / "db")
    with pytest.raises(InputError, match="No such file"):
        read_header(tmp_path / "nowhere")
