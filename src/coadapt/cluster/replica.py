"""One replica: its process, its devices, its place among the others, and its output."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from coadapt.cluster import processes
from coadapt.cluster.devices import Taken
from coadapt.cluster.environment import Seat
from coadapt.cluster.failures import TAIL_BYTES, tail
from coadapt.cluster.logs import read_part


class Child:
    """A process of an attempt with output of its own: a replica, or what runs before or beside them."""

    def __init__(self, name: str, logs: Path) -> None:
        self.name = name
        self.out, self.err = logs / f"{name}.out", logs / f"{name}.err"
        #: Where its own output begins: an earlier process may have written to the same file.
        self.out_from, self.err_from = _size(self.out), _size(self.err)
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        command: tuple[str, ...],
        envs: dict[str, str],
        *,
        workdir: str = "",
        cores: Iterable[int] | None = None,
    ) -> None:
        """Runs the command. OSError if it cannot."""
        self._process = processes.start(command, envs, self.out, self.err, workdir=workdir, cores=cores)
        self.leader = processes.leader_of(self._process)

    @property
    def pid(self) -> int:
        """Of a process that was started."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> int:
        """The exit code of a process that has ended."""
        assert self._process is not None
        return self._process.wait()

    def signal(self, number: int) -> None:
        """Signals its process group; it has not been reaped."""
        processes.signal_group(self.pid, number)

    def last_lines(self) -> str:
        """Of its errors; where it wrote none, of its output."""
        return _tail(self.err, self.err_from) or _tail(self.out, self.out_from)


class Replica(Child):
    """``number`` names its files: its rank for a worker, unless another that still runs has them."""

    def __init__(self, number: int, seat: Seat, taken: Taken, member: str, logs: Path) -> None:
        super().__init__(str(number), logs)
        self.number, self.seat, self.taken, self.member = number, seat, taken, member
        #: Whether its exit says something about the job: not of one that gets ready beside the others, or leaves them.
        self.counts = True

    def out_size(self) -> int:
        """How much it, and earlier ones of its number, have written."""
        return _size(self.out)


def _tail(path: Path, begin: int) -> str:
    data, _ = read_part(path, max(_size(path) - TAIL_BYTES, begin), TAIL_BYTES)
    return tail(data)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
