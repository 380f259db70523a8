"""Counts the processes that the kernel killed for lack of memory, to tell such a SIGKILL from any other."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

#: A kill is noticed at most so much later than it was counted.
_WITHIN_S = 10.0
_COUNT = re.compile(r"^oom_kill (\d+)$", re.M)


def kills() -> int:
    """Returns the number of out-of-memory kills in this process's control group, else on the machine since boot; 0 if
    unknown.
    """
    for path in (*_cgroup_files(), Path("/proc/vmstat")):
        try:
            found = _COUNT.search(path.read_text())
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0


class OomWatch:
    """Keeps recent values of the kill counter; ``count`` reads it."""

    def __init__(self, count: Callable[[], int] = kills) -> None:
        self._count = count
        self._seen: deque[tuple[float, int]] = deque([(float("-inf"), count())])

    def look(self, now: float) -> None:
        """Samples the counter; to be called regularly."""
        if now - self._seen[-1][0] >= _WITHIN_S / 4:
            self._seen.append((now, self._count()))
        while len(self._seen) > 1 and self._seen[1][0] <= now - _WITHIN_S:
            self._seen.popleft()

    def grew(self, now: float) -> bool:
        """Whether a process was killed for lack of memory a short while ago."""
        self.look(now)
        return self._count() > self._seen[0][1]


def _cgroup_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append(Path("/sys/fs/cgroup") / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(Path("/sys/fs/cgroup/memory") / path.lstrip("/") / "memory.oom_control")
            found.append(Path("/sys/fs/cgroup/memory/memory.oom_control"))
    return found
