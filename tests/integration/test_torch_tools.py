"""The tools of ``coadapt.torch`` as processes: what is no Python, what never returns, what is left behind."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.planning import torch_tools
from coadapt.planning.torch_tools import one_answer
from tests.waiting import timer_that_waits_for, until

Printed = pytest.CaptureFixture[str]


def a_python(path: Path, script: str) -> str:
    """An interpreter that runs ``script`` instead of any tool."""
    (path / "tool.py").write_text(script)
    fake = path / "fake-python"
    fake.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then exec {sys.executable} "$@"; fi\nexec {sys.executable} {path}/tool.py\n'
    )
    fake.chmod(0o755)
    return str(fake)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("program", ["/bin/ls", "/bin/echo", "/bin/true", "/bin/cat"])
def test_a_program_that_is_no_python_is_wrong_input(program: str, capsys: Printed) -> None:
    words = ["predict", "m.py:f", "--input", "3", "--batch", "4", "--gpu", "t4", "--python", program]
    assert run(words) == 2
    assert capsys.readouterr().err == f"coadapt: --python {program}: not a Python interpreter\n"


def test_a_tool_that_dies_in_a_real_python_is_no_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_tools, "_PROBE_S", 300.0)  # it says in its own time that it is one
    with pytest.raises(torch_tools.ToolError, match="exit code 11"):
        one_answer("trace", [], python=a_python(tmp_path, "import os; os._exit(11)"))


_STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open({pids!r} + ".new", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({pids!r} + ".new", {pids!r})
{then}
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
@pytest.mark.parametrize("then", ["", "print('this is not ours', flush=True)"])
def test_nothing_is_left_of_a_tool_that_never_returns(
    tmp_path: Path, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_tools, "_GRACE_S", 0.2)
    monkeypatch.setattr(torch_tools, "_PROBE_S", 300.0)
    pids = tmp_path / "pids"
    # its time is up when it has written them down
    monkeypatch.setattr(threading, "Timer", timer_that_waits_for(pids))
    # a shell's exec keeps the pid, so the tool's own are the ones to look for
    python = a_python(tmp_path, _STUBBORN.format(pids=str(pids), then=then))
    with pytest.raises(
        (InputError, torch_tools.ToolError), match="cannot be read" if then else "no answer within 20 s"
    ):
        one_answer("trace", [], python=python, timeout_s=20 if not then else None)
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    assert os.getpid() not in started
    until(lambda: not any(is_alive(pid) for pid in started), "a process of the tool is left")


def test_a_model_that_never_returns_is_one_line(tmp_path: Path, capsys: Printed) -> None:
    python = a_python(tmp_path, "import time; time.sleep(600)")
    words = ["predict", "m.py:f", "--input", "3", "--batch", "4", "--gpu", "t4", "--python", python]
    assert run([*words, "--timeout", "0.5"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("coadapt: no answer within 0.5 s: the model is too slow, or never returns")
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("device", ["foo", "meta", "cuda:", "cpu;"])
def test_profile_layers_refuses_a_device_that_is_none(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "layers", "--device", device]) == 2
    assert capsys.readouterr().err.startswith(f"coadapt: --device {device!r} is neither cpu nor cuda")
    assert list(tmp_path.iterdir()) == []


def test_profile_layers_without_the_device_asked_for_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "layers", "--device", "cuda:999"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("coadapt: --device cuda:999: ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
