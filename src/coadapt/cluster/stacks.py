"""What processes that hang are doing: their own stacks where they can tell, and what the kernel says of them.

``coadapt.torch`` has faulthandler answer SIGUSR1 (as may any script). A process that does not catch that signal would die of
it, and is not sent it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

#: How long processes are given to write their stacks.
ANSWER_S = 1.0
HEAD_LINES, _MOST_PROCESSES, _MOST_THREADS = 60, 64, 32
_TOLD = ("Name", "State", "Threads", "VmRSS", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.M)


def answers(pid: int, number: int = signal.SIGUSR1) -> bool:
    """Whether the process catches the signal."""
    found = _CAUGHT.search(_read(Path(f"/proc/{pid}/status")))
    return bool(found and int(found[1], 16) >> (number - 1) & 1)


def ask(pids: Iterable[int]) -> list[int]:
    """Has all that can write their stacks to their standard error; those that were asked."""
    asked = [pid for pid in pids if answers(pid)]
    for pid in asked:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    return asked


def seen_from_outside(pids: Iterable[int]) -> str:
    """What /proc tells of each process, and of its threads where they wait."""
    return "\n".join(_process(pid) for pid in sorted(pids)[:_MOST_PROCESSES])


def head(text: str, lines: int = HEAD_LINES) -> str:
    """The beginning, short enough for an event."""
    kept = text.splitlines()
    return "\n".join(line[:300] for line in kept[:lines])


def _process(pid: int) -> str:
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in _read(place / "status").splitlines() if ":" in line)
    command = _read(place / "cmdline").replace("\0", " ").strip()
    facts = ", ".join(f"{name} {' '.join(status[name].split())}" for name in _TOLD if name in status)
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
