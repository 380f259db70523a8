"""One replica on this machine: its process, its devices, its place among the others, and its output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from coadapt.executors.gang.replica_seats import Seat
from coadapt.executors.node import processes
from coadapt.executors.node.devices import Taken
from coadapt.executors.node.replica_logs import TAIL_BYTES, read_part, size_of, tail
from coadapt.wire.agent import from_line

#: At the end of an output, where a report that the script has finished is looked for.
_WORD_BYTES = 1 << 16


class Child:
    """A process of an attempt with its own output: a replica, or a process that runs before the replicas.

    ``name`` is that of its files.
    """

    def __init__(self, name: str, logs: Path, *, member: str = "") -> None:
        self.name, self.member = name, member or name
        self.out, self.err = logs / f"{name}.out", logs / f"{name}.err"
        #: Where its own output begins: an earlier process may have written to the same file.
        self.out_from, self.err_from = size_of(self.out), size_of(self.err)
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether it was asked to stop while it ran.
        self.asked = False

    def start(
        self,
        command: tuple[str, ...],
        envs: dict[str, str],
        *,
        workdir: str = "",
        confinement: processes.Confinement = processes.UNCONFINED,
    ) -> None:
        """Runs ``command`` with the environment ``envs`` in ``workdir``, confined. OSError if it cannot run."""
        self._process = processes.start(
            command, envs, self.out, self.err, workdir=workdir, confinement=confinement
        )
        self.leader = processes.leader_of(self._process)

    @property
    def pid(self) -> int:
        """Process id; only after ``start``."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> int:
        """The exit code of a process that has ended."""
        assert self._process is not None
        return self._process.wait()

    def ask(self, number: int) -> None:
        """Asks it to stop by a signal to its process group; it has not been reaped. One that has exited is not asked."""
        gone = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.asked = self.asked or gone is None
        processes.signal_group(self.pid, number)

    def says_done(self) -> bool:
        """Whether a report at the end of its standard output says that the script has finished."""
        begin = max(size_of(self.out) - _WORD_BYTES, self.out_from)
        data, _ = read_part(self.out, begin, _WORD_BYTES)
        reports = (from_line(line) for line in data.decode(errors="replace").split("\n"))
        return any(report is not None and report.done for report in reports)

    def last_lines(self) -> str:
        """Returns the last lines of standard error; if it is empty, of standard output."""
        return _tail(self.err, self.err_from) or _tail(self.out, self.out_from)


class Replica(Child):
    """One replica on this machine.

    Args:
        number: names its files: the rank of a worker, unless a replica that still runs has that number.
        seat: its place among the others.
        taken: its devices.
        member: name that the gang gave it.
        logs: directory of its output.
    """

    def __init__(self, number: int, seat: Seat, taken: Taken, member: str, logs: Path) -> None:
        super().__init__(str(number), logs, member=member)
        self.number, self.seat, self.taken = number, seat, taken

    def out_size(self) -> int:
        """Returns the bytes in its output file, including those of earlier replicas with the same number."""
        return size_of(self.out)


def _tail(path: Path, begin: int) -> str:
    data, _ = read_part(path, max(size_of(path) - TAIL_BYTES, begin), TAIL_BYTES)
    return tail(data)
