"""Stacks of a hung attempt: asks its processes for them, and collects what they write.

``coadapt.torch`` has faulthandler answer SIGUSR1 (as may any script). A process that does not catch that signal would
be killed by it, and is not sent it. The state of every process in /proc is recorded as well. The answers usually take
a moment; on a busy machine the processes that were asked are waited for, up to a limit.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from coadapt.executors.node import processes
from coadapt.executors.node.replica import Child, Replica
from coadapt.executors.node.replica_logs import read_part, size_of

_MOST_BYTES = 1 << 18
#: Most seconds to wait for a replica that can show its stack.
_LONGEST_S = 30.0


class Hang:
    """Asks the processes of a hung attempt for their stacks, on construction.

    Read ``text`` once ``over`` is true, which may be at ``until``.

    Args:
        token: marks the processes of the attempt.
        leaders: leaders of its sessions.
        children: its processes that were not reaped.
        now: the present time.
        ranks: ranks of the present members, by member.
    """

    def __init__(
        self,
        token: str,
        leaders: Iterable[processes.Leader],
        children: Iterable[Child],
        now: float,
        *,
        ranks: Mapping[str, int],
    ) -> None:
        self._ranks = ranks
        self._replicas = [child for child in children if isinstance(child, Replica)]
        self._before = [size_of(replica.err) for replica in self._replicas]
        pids = processes.remaining(token, leaders)
        self._outside = seen_from_outside(pids)
        self._sessions = set(_sessions(ask(pids)))
        self.until = now + (ANSWER_S if self._sessions else 0.0)
        self._latest = now + _LONGEST_S

    def over(self, now: float) -> bool:
        """Whether all replicas have answered or the wait has ended."""
        if now < self.until:
            return False
        if now < self._latest and self._silent():
            self.until = now + ANSWER_S
            return False
        return True

    def text(self, logs: Path) -> str:
        """Returns the beginning of the collected stacks; writes all of them to ``logs/stacks.txt``."""
        stacks = []
        for replica, before in zip(self._replicas, self._before, strict=True):
            data, _ = read_part(replica.err, before, _MOST_BYTES)
            if data.strip():
                stacks.append(
                    f"rank {self._ranks.get(replica.member, replica.seat.rank)}:\n{data.decode('utf-8', 'replace').strip()}"
                )
        whole = "\n".join([*stacks, self._outside])
        with suppress(OSError):  # a full disk must not prevent the end of a hang
            (logs / "stacks.txt").write_text(whole)
        return head(whole)

    def _silent(self) -> bool:
        """Whether a replica of which some process was asked has written nothing since."""
        return any(
            replica.pid in self._sessions and size_of(replica.err) <= before
            for replica, before in zip(self._replicas, self._before, strict=True)
        )


def _sessions(pids: Iterable[int]) -> Iterator[int]:
    """Sessions of the processes that still exist; a replica leads its own."""
    for pid in pids:
        with suppress(ProcessLookupError):
            yield os.getsid(pid)


#: Seconds that processes have to write their stacks.
ANSWER_S = 1.0
HEAD_LINES, _MOST_PROCESSES, _MOST_THREADS = 60, 64, 32
_FACTS = ("Name", "State", "Threads", "VmRSS", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.M)


def answers(pid: int, number: int = signal.SIGUSR1) -> bool:
    """Whether the process catches the signal."""
    found = _CAUGHT.search(_read(Path(f"/proc/{pid}/status")))
    return bool(found and int(found[1], 16) >> (number - 1) & 1)


def ask(pids: Iterable[int]) -> list[int]:
    """Asks the processes that catch SIGUSR1 to write their stacks to standard error; returns those that were asked."""
    asked = [pid for pid in pids if answers(pid)]
    for pid in asked:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    return asked


def seen_from_outside(pids: Iterable[int]) -> str:
    """Returns what /proc shows of each process, and of its threads where they wait."""
    return "\n".join(_process(pid) for pid in sorted(pids)[:_MOST_PROCESSES])


def head(text: str, lines: int = HEAD_LINES) -> str:
    """Returns the first lines, short enough for an event."""
    kept = text.splitlines()
    return "\n".join(line[:300] for line in kept[:lines])


def _process(pid: int) -> str:
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in _read(place / "status").splitlines() if ":" in line)
    command = _read(place / "cmdline").replace("\0", " ").strip()
    facts = ", ".join(f"{name} {' '.join(status[name].split())}" for name in _FACTS if name in status)
    # the command's arguments may hold secrets: its program is enough
    found = [f"process {pid} {command.split(' ')[0]}: {facts or 'gone'}"]
    with suppress(OSError):
        for thread in sorted((place / "task").iterdir(), key=lambda path: int(path.name))[:_MOST_THREADS]:
            where = _read(thread / "wchan") or "?"
            stack = [line.split("] ", 1)[-1] for line in _read(thread / "stack").splitlines()[:6]]
            found.append(
                f"  thread {thread.name} {_read(thread / 'comm').strip()}: {' < '.join(stack) or where}"
            )
    return "\n".join(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
