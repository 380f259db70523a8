"""A job file, a command and options become one specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.client import read_submission
from coadapt.errors import InputError

FILE = """
run: python train.py --bs {batch_size} --epochs {epochs}
name: net
epochs: 3
batch: {initial: 32, max: 512}
envs: {A: "1", B: "2"}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    return str(path)


def test_file_alone_is_the_job_and_its_directory_that_of_the_code(file: str) -> None:
    found = read_submission([file])
    assert found.directory == Path(file).parent
    assert found.spec.name == "net"
    assert " ".join(found.spec.command).endswith("--bs 32 --epochs 3")


def test_options_win_over_the_file_and_none_is_not_given(file: str) -> None:
    spec = read_submission(
        [file], workdir="/code", name=None, epochs=9, batch=64, envs=("B=3", "C=x=y"), gpus="t4:2"
    ).spec
    assert (spec.name, spec.gpu_types) == ("net", ("t4",))
    assert " ".join(spec.command).endswith("--bs 64 --epochs 9")
    assert spec.batch is not None
    assert (spec.batch.initial, spec.batch.max) == (64, 512)
    assert {name: spec.envs[name] for name in "ABC"} == {"A": "1", "B": "3", "C": "x=y"}


def test_command_replaces_that_of_the_file(file: str) -> None:
    found = read_submission([file, "python", "other.py"], workdir="elsewhere")
    assert found.spec.command[-2:] == ("python", "other.py")
    assert found.directory == Path("elsewhere")


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        ([], {}, "nothing to run"),
        (["train.py"], {}, "train.py is not executable: write coadapt submit -- python train.py"),
        (["python", "train.py"], {"envs": ("A",)}, "--env 'A' has no value"),
        (["python", "train.py"], {"envs": ("=1",)}, "--env '' has no name"),
    ],
)
def test_what_cannot_run_is_said(words: list[str], options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        read_submission(words, **options)


def test_largest_batch_below_the_initial_one_is_refused_by_the_names_of_the_options() -> None:
    with pytest.raises(InputError, match=r"^--max-batch 32 is less than --batch 64$"):
        read_submission(["python", "train.py"], batch=64, max_batch=32)
