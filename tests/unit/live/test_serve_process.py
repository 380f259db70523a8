"""``coadapt serve``: an installation without the extra ``server``; how the audit log shows its options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.live.serve_process import _shown

_WITHOUT = """
import sys

class Hidden:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ("starlette", "uvicorn") else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hidden(each) for each in sys.meta_path]
from coadapt.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("more", [[], ["--detach"]])
def test_serve_without_the_server_extra_is_one_line(tmp_path: Path, more: list[str]) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, "serve", "--home", str(home), *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == (
        "coadapt: 'coadapt serve' needs the server extra (starlette, uvicorn not installed): pip install 'coadapt[server]'"
    )
    assert not home.exists()


def test_audit_log_shows_lists_of_options_as_words() -> None:
    assert _shown(("gpus.example.org", "https://ada:secret@hooks.example.org/key")) == (
        "gpus.example.org https://hooks.example.org/..."
    )
    assert _shown(()) == "none"
