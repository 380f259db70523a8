"""A PostgreSQL server that is to suffer: frozen, killed, and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests import postgres_server

#: Most seconds until a killed server can be started again.
_BACK_S = 60.0


class Postgres:
    """One running server, by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._directory = Path(parse_qs(urlsplit(url).query)["host"][0])

    def freeze(self, seconds: float) -> bool:
        """Nothing answers for a while."""
        stopped = self._signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._signal(signal.SIGCONT)
        return stopped

    def kill(self, seconds: float) -> bool:
        """SIGKILL of all its processes; it is back after a while."""
        killed = self._signal(signal.SIGKILL)
        time.sleep(seconds)
        deadline = time.monotonic() + _BACK_S
        while True:
            try:
                postgres_server.start_again(self._directory)
            except subprocess.CalledProcessError:
                # a process of it is still dying, and keeps its shared memory
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return killed

    def _signal(self, number: int) -> bool:
        try:
            first = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return False
        found = [first]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == first:
                    found.append(int(stat.parent.name))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return True


@contextmanager
def a_postgres() -> Iterator[Postgres | None]:
    """A new, empty server; None where there can be none."""
    if postgres_server.why_not():
        yield None
        return
    with postgres_server.server() as url:
        yield Postgres(url)
