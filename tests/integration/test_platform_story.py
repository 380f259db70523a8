"""The platform engineer's story, as the README tells it: its commands, in order, with a real controller and a real job."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

README = Path(__file__).parents[2] / "README.md"
COADAPT = [sys.executable, "-m", "coadapt.cli.main"]
#: A job of any framework: it says how far it is, for as long as it is let, and leaves its state behind when it is told to stop.
TRAIN = """
import itertools, json, signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for epoch in itertools.count():
    print("COADAPT", json.dumps({"epoch": epoch + 1, "batch": 64, "step_time": 0.05}), flush=True)
    time.sleep(0.2)  # a step of training
"""


def _told() -> list[list[str]]:
    text = README.read_text(encoding="utf-8").partition("## For a platform engineer")[2]
    block = re.search(r"```console\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [shlex.split(line[2:], comments=True)[1:] for line in block[1].splitlines()]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COADAPT_SERVER", raising=False)
    monkeypatch.chdir(tmp_path / "code")
    yield tmp_path / "home" / "cluster"
    subprocess.run([*COADAPT, "down"], capture_output=True, check=False)


def _run(arguments: list[str]) -> str:
    done = subprocess.run([*COADAPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def _until(arguments: list[str], words: tuple[str, ...]) -> str:
    """The output once it has all words; commands only ask, the controller acts in its own time."""
    out = ""

    def there() -> bool:
        nonlocal out
        out = _run(arguments)
        return all(word in out for word in words)

    until(there, lambda: (arguments, out))
    return out


def test_story_of_the_readme(home: Path) -> None:
    serve, submit, ps, why, down = _told()
    assert [line[0] for line in (serve, submit, ps, why, down)] == ["serve", "submit", "ps", "why", "down"]
    served = subprocess.Popen(
        [*COADAPT, *serve, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        until(lambda: (home / "address").exists() or served.poll() is not None, "the controller is not up")
        assert served.poll() is None
        # nobody sits at a terminal here; and the interpreter is this one
        words = [sys.executable if word == "python" else word for word in submit[1:]]
        assert "Submitted train-1." in _run(["submit", "-y", *words])
        _until(ps, ("train-1", "RUNNING", "64"))
        _until(why, ("train-1 (RUNNING)",))  # it may be given another core at this moment
        assert "Nothing is left running" in _run(down)
        assert served.wait(300) is not None
    finally:
        served.kill()
        served.wait()
        assert served.stdout is not None
        served.stdout.close()
