"""What is shown while something goes on: on a terminal only, and not before somebody would wonder."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from coadapt import progress
from coadapt.cli.main import run
from coadapt.progress import Pulse
from tests.waiting import until


class Screen(io.StringIO):
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = True, after_s: float = 0.0
    ) -> None:
        super().__init__()
        self.terminal = terminal
        monkeypatch.setattr("sys.stderr", self)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress, "PATIENCE_S", after_s)

    def isatty(self) -> bool:
        return self.terminal


def test_pulse_says_what_goes_on_and_leaves_nothing_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    with Pulse("planning"):
        until(lambda: "planning" in screen.getvalue())
    assert "\x1b[2K" in screen.getvalue().rpartition("planning")[2]  # its line is emptied


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, after_s=3600.0)
    with Pulse("planning") as pulse:
        pass
    pulse.begin()  # its time comes when it is over
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (True, True)])
def test_pulse_is_for_those_who_see_it(terminal: bool, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, terminal=terminal)
    with Pulse("planning", quiet=quiet) as pulse:
        pulse.begin()
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("plan --samples runs.csv --gpus 1 --epochs 3", "planning"),
        ("predict m.py:f --input 3 --batch 4 --gpu t4 --python /bin/true", "tracing the model"),
    ],
)
def test_commands_that_may_take_longer_say_what_goes_on(
    words: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Told(Pulse):
        def __enter__(self) -> Pulse:
            shown.append(self._what)
            return super().__enter__()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "Pulse", Told)
    (tmp_path / "runs.csv").write_text("batch,workers,epoch_s\n32,1,60\n64,1,50\n")
    run(words.split())
    assert shown == [what]
