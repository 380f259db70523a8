"""The command line in tests: examples to run on, and the command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL, WORKLOAD = str(EXAMPLES / "small.csv"), str(EXAMPLES / "workload.csv")
HEADER = "job,submit_s,gpus,duration_s\n"
Printed = pytest.CaptureFixture[str]


def coadapt_command(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own."""
    command = [sys.executable, "-m", "coadapt.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]
