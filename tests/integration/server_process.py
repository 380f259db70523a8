"""The API as its users have it: a process of its own, on a free port, over a home in a directory of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.waiting import until


@contextmanager
def running(home: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """The process, and the host and port where it listens."""
    address = home / "address"
    address.unlink(missing_ok=True)
    with (home / "api.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "coadapt.server", str(home)], stdout=log, stderr=log, env=dict(os.environ)
        )
    try:
        until(lambda: address.exists() or process.poll() is not None, (home / "api.log").read_text)
        assert address.exists(), (home / "api.log").read_text()
        parts = urlsplit(address.read_text().strip())
        assert parts.hostname is not None
        assert parts.port is not None
        yield process, parts.hostname, parts.port
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
