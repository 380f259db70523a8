from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.spec import code_archive
from coadapt.spec.code_archive import ORIGIN, freeze
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [each.name for each in archive.getmembers() if each.name != ORIGIN]


def git(directory: Path, *arguments: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run(["git", "-C", str(directory), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "net.py").write_text("")
    return tmp_path


def test_same_files_give_the_same_bytes(code: Path) -> None:
    first = freeze(code)
    (code / "train.py").touch()
    assert freeze(code).data == first.data
    assert names(first.data) == ["lib/net.py", "train.py"]


def test_changed_file_gives_other_bytes(code: Path) -> None:
    first = freeze(code)
    (code / "train.py").write_text("print(2)\n")
    assert freeze(code).data != first.data


def test_what_is_never_code_and_what_is_ignored_stays_out(code: Path) -> None:
    for name in (".venv", "__pycache__", "data", "out"):
        (code / name).mkdir()
        (code / name / "x.bin").write_text("x")
    (code / "model.pt").write_text("x")
    (code / ".coadaptignore").write_text("# results\ndata/\nout\n*.pt\n")
    assert names(freeze(code).data) == [".coadaptignore", "lib/net.py", "train.py"]


@pytest.mark.parametrize("repository", [False, True])
def test_home_of_a_cluster_is_never_code(code: Path, repository: bool) -> None:
    if repository:
        git(code, "init", "-q")
    home = Home(code / "out" / "cluster")
    home.make()
    home.write_options(ServeOptions())
    home.token.write_text("secret")
    (home.path / "job_key").write_text("secret")
    (code / "out" / "notes.txt").write_text("")
    assert names(freeze(code).data) == ["lib/net.py", "out/notes.txt", "train.py"]
    with pytest.raises(InputError, match="home directory of a cluster"):
        freeze(home.path)


def test_git_repository_with_changes_and_new_files(code: Path) -> None:
    git(code, "init", "-q")
    (code / ".gitignore").write_text("data\n")
    git(code, "add", ".")
    git(code, "commit", "-qm", "one")
    clean = freeze(code)
    assert clean.commit
    assert not clean.changed
    (code / "train.py").write_text("print(2)\n")
    (code / "new.py").write_text("")
    (code / "data").mkdir()
    (code / "data" / "large.bin").write_text("x")
    changed = freeze(code)
    assert changed.changed
    assert names(changed.data) == [".gitignore", "lib/net.py", "new.py", "train.py"]
    assert "with changes" in str(changed)


def test_file_that_git_knows_and_that_is_gone_is_left_out(code: Path) -> None:
    git(code, "init", "-q")
    git(code, "add", ".")
    git(code, "commit", "-qm", "one")
    (code / "train.py").unlink()
    assert names(freeze(code).data) == ["lib/net.py"]


def test_links_inside_stay_and_links_outside_go(code: Path) -> None:
    (code / "inside.py").symlink_to("train.py")
    (code / "lib" / "up.py").symlink_to("../train.py")
    (code / "outside").symlink_to("/etc/passwd")
    (code / "above").symlink_to("../../secret")
    assert names(freeze(code).data) == ["inside.py", "lib/net.py", "lib/up.py", "train.py"]


def test_too_much_is_said_with_what_to_do(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MOST_BYTES", 5)
    with pytest.raises(InputError, match="coadaptignore"):
        freeze(code)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        freeze(tmp_path / "none")
