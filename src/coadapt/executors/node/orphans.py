"""Processes that have left their attempt: found as children of the keeper that it did not start, and ended.

The keeper is a subreaper: a process whose parent dies becomes its child. Without control groups the first process of each
member is a subreaper as well, so that its daemons stay below it while it lives, and become children of the keeper in the
instant in which it ends, before it can be reaped. A child that no living attempt can claim, by token, session or control
group, is an orphan. It is killed at once; what it has started becomes a child of the keeper then, and is found likewise.

An attempt that may own a living orphan (of which a process has exited when the orphan was first seen) is not gone.

``guarded`` adds a warden, for a keeper without control groups that is killed: the keeper's parent, which inherits the
orphans, kills them, and shares the keeper's lock until none is left.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path

from coadapt.executors.node.processes import ProcessTable, adopt_orphans, entry_of, signal_each

log = logging.getLogger(__name__)

#: Most looks for new orphans in one turn: one that forks faster than it is killed must not keep the keeper busy for ever.
_LOOKS = 25
#: Seconds in which a warden tries to end what a killed keeper left.
_WARDEN_S = 30.0
_PR_SET_NAME = 15

#: An attempt: job and number.
Key = tuple[str, int]


class Orphans:
    """The orphans of this process."""

    def __init__(self) -> None:
        #: Living orphans, and the attempts that may own each.
        self._living: dict[int, frozenset[Key]] = {}
        #: Children that an attempt has claimed.
        self._claimed: set[int] = set()
        #: How many were found, and the last of them in words; for the journal.
        self.count, self.last = 0, ""

    def look(
        self, known: Container[int], claim: Callable[[int], bool], suspects: Callable[[], Iterable[Key]]
    ) -> None:
        """Finds and kills orphans, in a bounded number of looks.

        Args:
            known: children that this process has started.
            claim: whether a living attempt owns the process with this pid.
            suspects: attempts that may own an orphan that is seen now.
        """
        for _ in range(_LOOKS):
            strangers = [pid for pid in children() if pid not in known and pid not in self._claimed]
            fresh = [pid for pid in strangers if pid not in self._living]
            found = []
            for pid in fresh:
                entry = entry_of(pid)
                if entry is None:
                    continue  # it has ended, and will be reaped
                if claim(pid):
                    self._claimed.add(pid)
                    continue
                self._note(pid, frozenset(suspects()))
                found.append(pid)
            # also those that are known: a signal may have been lost in an exec
            signal_each([pid for pid in strangers if pid in self._living], signal.SIGKILL)
            if not found:
                return

    def reaped(self, pid: int) -> None:
        """Notes that a child was reaped."""
        self._living.pop(pid, None)
        self._claimed.discard(pid)

    def forget_claims(self) -> None:
        """Has claims examined again, since an attempt has ended."""
        self._claimed.clear()

    def may_own(self, key: Key) -> bool:
        """Whether a living orphan may be of this attempt."""
        return any(key in owners for owners in self._living.values())

    @property
    def living(self) -> bool:
        """Whether any orphan is left."""
        return bool(self._living)

    def _note(self, pid: int, owners: frozenset[Key]) -> None:
        self._living[pid] = owners
        self.count += 1
        jobs = ", ".join(sorted({job for job, _ in owners})) or "an unknown job"
        self.last = f"process {pid} ({_program(pid)}) of {jobs}"
        log.warning("killed %s: it had left its job's session and environment", self.last)


def children() -> list[int]:
    """Returns the children of this process; zombies may be among them."""
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{own}/children").read_text().split()]
    except OSError:  # a kernel without this file
        return [each.pid for each in ProcessTable().processes.values() if each.parent == own]


def _program(pid: int) -> str:
    # arguments may hold secrets
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"


def guarded(main: Callable[[], int]) -> int:
    """Runs ``main`` in a child process, and returns what it returned in that process; this one becomes its warden."""
    adopt_orphans()
    keeper = os.fork()
    if keeper == 0:
        return main()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"coadapt-warden", 0, 0, 0)
    _, status = os.waitpid(keeper, 0)
    code = os.waitstatus_to_exitcode(status)
    deadline = time.monotonic() + _WARDEN_S
    with suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline:
            signal_each(children(), signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
    if left := children():
        log.error("processes %s are still running after SIGKILL", ", ".join(map(str, left)))
    os._exit(code if code >= 0 else 128 - code)
