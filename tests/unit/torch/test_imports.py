"""What a replica imports before its first step: every start and every resize waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_agent_starts_without_scipy() -> None:
    script = "import sys, coadapt.torch.job; sys.exit(any(m.split('.')[0] == 'scipy' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
