from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.report.output_files import fresh_directory, fresh_file


def test_directory_appears_as_a_whole_with_its_parents(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with fresh_directory(target) as staging:
        (staging / "summary.json").write_text("{}")
        assert not target.exists()
    assert (target / "summary.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: BaseException) -> None:
    def write() -> None:
        with fresh_directory(tmp_path / "out") as staging:
            (staging / "summary.json").write_text("{")
            raise error

    with pytest.raises(type(error)):
        write()
    assert list(tmp_path.iterdir()) == []


def test_interrupt_right_after_the_directory_was_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path.mkdir

    def interrupted(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        made(self, mode, parents, exist_ok)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), fresh_directory(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_own_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "jobs.csv").write_text("old")
    with fresh_directory(target) as staging:
        (staging / "summary.json").write_text("new")
    assert [path.name for path in target.iterdir()] == ["summary.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_own_directory_survives_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("old")
    with pytest.raises(ValueError, match="x"), fresh_directory(tmp_path):
        raise ValueError("x")
    assert (tmp_path / "jobs.csv").read_text() == "old"


def test_foreign_files_are_not_replaced_without_force(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"not ours \(thesis.tex\)"), fresh_directory(target):
        pass
    assert (target / "thesis.tex").exists()
    with fresh_directory(target, force=True) as staging:
        (staging / "jobs.csv").write_text("")
    assert sorted(path.name for path in target.iterdir()) == ["jobs.csv", "thesis.tex"]
    with fresh_directory(target, force=True) as staging:
        (staging / "summary.json").write_text("")
    assert sorted(path.name for path in target.iterdir()) == ["summary.json", "thesis.tex"]


def test_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="not a directory"), fresh_directory(tmp_path / "out", force=True):
        pass


def test_a_file_where_a_parent_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError), fresh_directory(tmp_path / "file" / "out"):
        pass


def test_file_is_written_as_a_whole_and_never_replaced_unasked(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    with fresh_file(target) as part:
        part.write_text("1")
    with pytest.raises(InputError, match="exists"), fresh_file(target):
        pass
    with pytest.raises(ValueError, match="x"), fresh_file(target, force=True):
        raise ValueError("x")
    assert target.read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_directory_that_exists_stays_the_same_directory(tmp_path: Path) -> None:
    before = tmp_path.stat().st_ino
    with fresh_directory(tmp_path) as staging:
        (staging / "summary.json").write_text("{}")
    assert tmp_path.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_directory_where_the_user_stands_is_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fresh_directory(Path()) as staging:
        (staging / "jobs.csv").write_text("")
    assert [path.name for path in Path().iterdir()] == ["jobs.csv"]


def test_link_to_a_directory_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with fresh_directory(tmp_path / "link") as staging:
        (staging / "jobs.csv").write_text("")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["jobs.csv"]


def test_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="not a directory"), fresh_directory(tmp_path / "link"):
        pass


def test_name_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too long"), fresh_directory(tmp_path / ("x" * 5000)):
        pass
    with pytest.raises(InputError, match="too long"), fresh_file(tmp_path / ("x" * 5000)):
        pass
