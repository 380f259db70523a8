"""An attempt that hangs: its processes are asked for their stacks, and what they write is collected.

A moment is enough where the machine has time; on a busy one those who were asked are waited for, up to a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from coadapt.cluster import processes, stacks
from coadapt.cluster.logs import read_part
from coadapt.cluster.replica import Child, Replica

_MOST_BYTES = 1 << 18
#: How long a replica that can show its stack, and has not, is waited for.
_LONGEST_S = 30.0


class Hang:
    """Asks at once; ``text`` may be read when it is ``over``, which may be the case ``until`` then."""

    def __init__(
        self, token: str, leaders: Iterable[processes.Leader], children: Iterable[Child], now: float
    ) -> None:
        self._replicas = [child for child in children if isinstance(child, Replica)]
        self._before = [_size(replica.err) for replica in self._replicas]
        pids = processes.remaining(token, leaders)
        self._outside = stacks.seen_from_outside(pids)
        self._sessions = set(_sessions(stacks.ask(pids)))
        self.until = now + (stacks.ANSWER_S if self._sessions else 0.0)
        self._latest = now + _LONGEST_S

    def over(self, now: float) -> bool:
        """Whether nobody is waited for any more."""
        if now < self.until:
            return False
        if now < self._latest and self._silent():
            self.until = now + stacks.ANSWER_S
            return False
        return True

    def text(self, logs: Path) -> str:
        """The beginning of what is known; all of it is in ``logs/stacks.txt``."""
        told = []
        for replica, before in zip(self._replicas, self._before, strict=True):
            data, _ = read_part(replica.err, before, _MOST_BYTES)
            if data.strip():
                told.append(f"rank {replica.seat.rank}:\n{data.decode('utf-8', 'replace').strip()}")
        whole = "\n".join([*told, self._outside])
        with suppress(OSError):  # a full disk keeps nobody from ending a hang
            (logs / "stacks.txt").write_text(whole)
        return stacks.head(whole)

    def _silent(self) -> bool:
        """Whether a replica of which some process was asked has written nothing since."""
        return any(
            replica.pid in self._sessions and _size(replica.err) <= before
            for replica, before in zip(self._replicas, self._before, strict=True)
        )


def _sessions(pids: Iterable[int]) -> Iterator[int]:
    """Of the processes that are still there; a replica leads its own."""
    for pid in pids:
        with suppress(ProcessLookupError):
            yield os.getsid(pid)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
