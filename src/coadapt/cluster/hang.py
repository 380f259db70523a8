"""An attempt that hangs: its processes are asked for their stacks, and a moment later what they wrote is collected."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from coadapt.cluster import processes, stacks
from coadapt.cluster.logs import read_part
from coadapt.cluster.replica import Child, Replica

_MOST_BYTES = 1 << 18


class Hang:
    """Asks at once; ``text`` may be read from ``until`` on."""

    def __init__(
        self, token: str, leaders: Iterable[processes.Leader], children: Iterable[Child], now: float
    ) -> None:
        self._replicas = [child for child in children if isinstance(child, Replica)]
        self._before = [_size(replica.err) for replica in self._replicas]
        pids = processes.remaining(token, leaders)
        self._outside = stacks.seen_from_outside(pids)
        self.until = now + (stacks.ANSWER_S if stacks.ask(pids) else 0.0)

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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
