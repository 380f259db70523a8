"""Streams and signals: full disks, closed ends, readers that have seen enough, Ctrl-C."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.integration.command_line import SMALL, WORKLOAD
from tests.waiting import until


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupt_ends_all_processes_and_writes_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "coadapt.cli.main",
        "compare",
        WORKLOAD,
        "--policies",
        "pollux,pollux:p=0",
    ]
    # far longer than the test may be kept waiting
    command += ["--clusters", "4x4", "--seeds", "100", "--processes", "2", "-o", str(tmp_path / "out")]
    # a shell that started us in the background has SIGINT ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    until(lambda: any(tmp_path.iterdir()) or process.poll() is not None, "no output begun")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "coadapt: interrupted; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "coadapt.cli.main", "policies"]
    # a shell that started us in the background has SIGINT ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 141


def _shell(script: str) -> subprocess.CompletedProcess[str]:
    """``coadapt`` in a shell that has its own ideas about standard output."""
    named = script.replace("coadapt ", f"{shlex.quote(sys.executable)} -m coadapt.cli.main ")
    return subprocess.run(["sh", "-c", named], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "arguments", ["--help", "policies", f"simulate {SMALL} --policy fifo --cluster 2x4 --json"]
)
def test_full_disk_behind_standard_output_is_said(arguments: str) -> None:
    done = _shell(f"coadapt {arguments} >/dev/full")
    said = "coadapt: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.skipif(os.name != "posix", reason="shell")
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("coadapt policies >&-", 0),
        ("coadapt policies 2>&-", 0),
        ("coadapt policies >&- 2>&-", 0),
        ("coadapt simulate nowhere.csv 2>&-", 2),
    ],
)
def test_closed_streams_are_no_error(script: str, code: int) -> None:
    done = _shell(script)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_terminate_leaves_nothing_behind(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    head, *jobs = Path(WORKLOAD).read_text().splitlines()
    # far longer than the test may be kept waiting
    long = tmp_path_factory.mktemp("long") / "workload.csv"
    long.write_text("\n".join([head, *(f"n{n}-{job}" for n in range(50) for job in jobs)]) + "\n")
    command = [sys.executable, "-m", "coadapt.cli.main", "simulate", str(long), "--policy", "pollux"]
    command += ["-o", str(tmp_path / "out")]
    # a shell that started us in the background has SIGINT ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    until(lambda: any(tmp_path.iterdir()) or process.poll() is not None, "no output begun")
    assert process.poll() is None
    process.terminate()
    _, err = process.communicate()
    assert (process.returncode, err) == (143, "coadapt: terminated; nothing was written\n")
    assert list(tmp_path.iterdir()) == []
