"""Ends everything of a home directory, and makes sure that nothing is left.

Order: the supervisor (and with it controller and API), so that nothing is decided any more; then the keeper, which has each job
save its state. What remains after that is found by the tokens in the keeper's journal, and killed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

from coadapt.cluster.home import Home
from coadapt.cluster.locks import is_locked, pid_in
from coadapt.cluster.processes import TOKEN, is_gone, signal_each, started_ticks
from coadapt.errors import CoadaptError

#: Seconds beyond the grace of jobs that a process has to end before it is killed.
_PATIENCE_S = 30.0
_LOOK_S = 0.05


def keeper_runs(home: Home) -> bool:
    """Whether a keeper owns the home's replicas."""
    return is_locked(home.keeper / "keeper.lock")


def end_supervisor(home: Home) -> bool:
    """Ends ``coadapt serve`` and its children; False if none ran."""
    return _end_holder(home.lock, "supervisor", _PATIENCE_S)


def end_controller(owner: str | None) -> bool:
    """Ends a controller that outlived its supervisor, by the name in its lease; False if it is gone."""
    if owner is None or is_gone(owner):
        return False
    host, _, pid, _ = owner.split("/")
    if host != os.uname().nodename:
        raise CoadaptError(f"a controller runs on {host} (process {pid}); run 'coadapt down' there")
    _end(int(pid), lambda: is_gone(owner), _PATIENCE_S)
    return True


def end_keeper(home: Home, grace_s: float) -> bool:
    """Has all jobs save their state and end, then the keeper; False if none ran."""
    return _end_holder(home.keeper / "keeper.lock", "keeper", grace_s + _PATIENCE_S)


def tokens_of(home: Home) -> dict[str, tuple[str, bool]]:
    """Every attempt that the keeper ever started: its token, the job, and whether it is known to have ended."""
    path = home.keeper / "keeper.db"
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)) as journal:
            rows = journal.execute("SELECT token, job, end_number IS NOT NULL FROM attempts").fetchall()
    except sqlite3.Error as error:
        raise CoadaptError(f"the keeper's journal {path} cannot be read: {error}") from None
    return {str(token): (str(job), bool(ended)) for token, job, ended in rows}


def leftovers(tokens: Iterable[str]) -> dict[int, str]:
    """Living processes that carry one of the tokens: pid -> token."""
    markers = {f"{TOKEN}={token}".encode(): token for token in tokens}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # gone, or of another user
            for part in (entry / "environ").read_bytes().split(b"\0"):
                if part in markers and started_ticks(int(entry.name)) is not None:
                    found[int(entry.name)] = markers[part]
    return found


def end_leftovers(tokens: Iterable[str]) -> set[int]:
    """Kills what carries one of the tokens; what was there. CoadaptError if something will not die."""
    tokens, killed = list(tokens), set[int]()
    deadline = time.monotonic() + _PATIENCE_S
    while left := leftovers(tokens):
        if time.monotonic() > deadline:
            raise CoadaptError(f"processes {', '.join(map(str, sorted(left)))} do not end")
        killed |= set(left)
        signal_each(left, signal.SIGKILL)
        time.sleep(_LOOK_S)
    return killed


def _end_holder(lock: Path, what: str, patience_s: float) -> bool:
    if not is_locked(lock):
        return False
    pid = pid_in(lock)
    if pid is None:
        raise CoadaptError(f"a {what} holds {lock}, and it does not say which process it is")
    began = started_ticks(pid)
    # it lets go of its lock a moment before it is gone
    _end(pid, lambda: not is_locked(lock) and (began is None or started_ticks(pid) != began), patience_s)
    return True


def _end(pid: int, ended: Callable[[], bool], patience_s: float) -> None:
    for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _PATIENCE_S)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if ended():
                return
            time.sleep(_LOOK_S)
    raise CoadaptError(f"process {pid} does not end")
