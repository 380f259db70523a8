"""Where a machine has the files of jobs, and how it reads them for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.executors.node.node_files import NodeFiles


def test_code_is_found_by_its_hash_beneath_the_home_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "code" / "abc").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    files = NodeFiles(tmp_path / "keeper", tmp_path)
    assert files.code_directory("abc") == str(tmp_path / "code" / "abc")
    assert files.code_directory("") == ""
    for name in ("def", "..", ".", "../secret", "/", str(tmp_path / "secret")):
        with pytest.raises(FileNotFoundError, match="code is not on this machine"):
            files.code_directory(name)


def test_machine_without_a_home_has_no_code_checkpoints_or_paces(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    assert files.code_directory("abc") == ""
    assert files.checkpoint_directory("a") is None
    assert files.pace("resnet18", "t4") == ""
    assert files.checkpoints("a") == []


def test_pace_is_that_of_the_profile_on_the_type_of_gpu(tmp_path: Path) -> None:
    (tmp_path / "paces").mkdir()
    (tmp_path / "paces" / "res%2Fnet.t4.json").write_text("{}")
    files = NodeFiles(tmp_path / "keeper", tmp_path)
    assert files.pace("res/net", "t4") == str(tmp_path / "paces" / "res%2Fnet.t4.json")
    assert files.pace("res/net", "a100") == files.pace("", "t4") == ""


@pytest.mark.parametrize("job", ["a-1", "../../etc/..", "long" * 100])
def test_output_of_any_job_is_read_in_parts(tmp_path: Path, job: str) -> None:
    files = NodeFiles(tmp_path / "keeper", tmp_path)
    assert files.read_log(job, 1, 0, "out", 0, 10) is None
    path = files.log_directory(job, 1)
    assert path.parent == tmp_path / "keeper" / "logs"
    path.mkdir(parents=True)
    (path / "0.out").write_bytes(b"0123456789")
    part = files.read_log(job, 1, 0, "out", 2, 3)
    assert part is not None
    assert (part.data, part.offset, part.at_end) == (b"234", 5, False)
    part = files.read_log(job, 1, 0, "out", -4, 100)
    assert part is not None
    assert (part.data, part.offset, part.at_end) == (b"6789", 10, True)
    part = files.read_log(job, 1, 0, "out", 99, 100)  # it was emptied since
    assert part is not None
    assert part.data == b"0123456789"
    assert files.read_log(job, 1, 1, "out", 0, 10) is None


def test_job_runs_in_a_copy_of_its_code_which_stays_for_its_attempts(tmp_path: Path) -> None:
    files, code = NodeFiles(tmp_path / "keeper", tmp_path), tmp_path / "code" / "abc"
    (code / "inner").mkdir(parents=True)
    (code / "train.py").write_text("first")
    (code / "inner" / "link").symlink_to("../train.py")
    mine, other = Path(files.work_directory("a", "abc")), Path(files.work_directory("b", "abc"))
    (mine / "train.py").write_text("changed")
    (mine / "saved").write_text("state")
    assert (code / "train.py").read_text() == (other / "train.py").read_text() == "first"
    assert (other / "inner" / "link").read_text() == "first"
    again = Path(files.work_directory("a", "abc"))
    assert ((again / "saved").read_text(), (again / "train.py").read_text()) == ("state", "changed")
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["a", "b"]
    assert files.work_directory("c", "") == ""
    with pytest.raises(FileNotFoundError, match="code is not on this machine"):
        files.work_directory("c", "missing")
