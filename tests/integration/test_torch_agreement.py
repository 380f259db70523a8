"""Several replicas of scripts that decide, skip, leave, report or fail on one of them: agreed among all, or ended in one line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks import gallery_wrongs
from benchmarks.gallery_runs import GALLERY
from benchmarks.scripts import expected, outcome

from tests.integration.torch_forks import Replicas
from tests.waiting import until

CASES = {case.name: case for case in gallery_wrongs.CASES}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("early stop on one replica", "right"),
        ("skip on one replica", "right"),
        ("unfreeze later", "right"),
        ("report in the loop on one replica", "right"),
        ("rate by one replica's loss", "found"),
        ("dataset by rank", "found"),
    ],
)
def test_a_planted_wrong_is_found_or_right(name: str, found: str, tmp_path: Path) -> None:
    answer = CASES[name].run(tmp_path)
    assert answer["outcome"] == found, answer["why"]


@pytest.mark.parametrize("name", ["unused_head", "vae"])
def test_a_script_of_the_gallery_is_exact_or_refused(name: str, tmp_path: Path) -> None:
    script = GALLERY / f"{name}.py"
    answer = outcome(script, tmp_path)
    assert answer["outcome"] == expected(script)[0], answer["why"]


def test_a_stop_during_validation_loses_nothing(tmp_path: Path) -> None:
    envs = {
        "OUT": str(tmp_path),
        "COADAPT_AUDIT": str(tmp_path / "audit"),
        "COADAPT_CHECKPOINTS": str(tmp_path / "kept"),
    }
    replicas = Replicas("validating.py", 2, tmp_path / "first", **envs)
    until(lambda: all((tmp_path / f"validating{rank}").exists() for rank in range(2)), "both validate")
    replicas.signal(signal.SIGTERM, [1])
    assert replicas.wait() == [143, 143], replicas.output()
    (tmp_path / "go").touch()
    again = Replicas("validating.py", 1, tmp_path / "second", COADAPT_ATTEMPT="1", **envs)
    assert again.wait() == [0], again.output()
    # five steps of each epoch, none made again
    assert (tmp_path / "audit").read_bytes().count(b"\n") == 10


def test_the_replica_that_fails_first_is_named_by_the_others(tmp_path: Path) -> None:
    replicas = Replicas("validating.py", 2, tmp_path, OUT=str(tmp_path), FAIL_ON="1")
    assert all(code not in (0, None) for code in replicas.wait())
    assert "ValueError: this replica has no data" in replicas.output(1)
    said = replicas.output(0)
    assert "replica 1 failed first: ValueError: this replica has no data (validating.py, line " in said
    assert "Traceback" not in said
