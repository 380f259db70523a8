"""A keeper seen from other processes of its machine: whether it runs, what it has started, and how it is ended reliably.

Used to end a cluster whose controller may be dead. Processes that a dead keeper left are found by the tokens in its
journal, in their environments and in the names of control groups.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from coadapt.errors import CoadaptError
from coadapt.executors.node import control_groups
from coadapt.executors.node.processes import Leader, ProcessTable, signal_each, started_ticks

#: Seconds beyond the grace of jobs that a process has to end before it is killed.
PATIENCE_S = 30.0
_LOOK_S = 0.05
#: In the command line of a rendezvous store, which belongs to no attempt.
_STORE = b"coadapt.torch.elastic.rendezvous_process"


class Ended(NamedTuple):
    """What was ended, in sentences (``lines``), and the number of attempts that were still running (``unfinished``)."""

    lines: list[str]
    unfinished: int


def keeper_lock(directory: Path) -> Path:
    """Returns the lock file of the keeper of a directory."""
    return directory / "keeper.lock"


def keeper_runs(directory: Path) -> bool:
    """Whether a keeper runs for the directory."""
    return is_locked(keeper_lock(directory))


def running_jobs(directory: Path) -> set[str]:
    """Returns the jobs that the keeper runs."""
    if not keeper_runs(directory):
        return set()
    return {job for job, ended in tokens_of(directory).values() if not ended}


def end_everything(directory: Path, grace_s: float) -> Ended:
    """Has all jobs save their state and end, then the keeper; kills what is left. CoadaptError if a process survives."""
    before = [token for token, (_, ended) in tokens_of(directory).items() if not ended]
    known, _ = orphans_of(directory)
    lines = []
    if end_keeper(directory, grace_s):
        jobs = "no job ran" if not before else f"{len(before)} running job{'s' * (len(before) > 1)} stopped"
        lines.append(f"The keeper has ended; {jobs}.")
    orphans, last = orphans_of(directory)
    if orphans > known:
        lines.append(f"{_processes(orphans - known)} that had left their jobs killed; the last: {last}.")
    killed = end_leftovers(directory, tokens_of(directory))
    if killed:
        lines.append(f"{_processes(len(killed))} without a keeper killed.")
    return Ended(lines, len(before))


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count != 1)}"


def end_keeper(directory: Path, grace_s: float) -> bool:
    """Has all jobs save their state and end, then the keeper; False if none ran."""
    return end_holder(keeper_lock(directory), "keeper", grace_s + PATIENCE_S)


def tokens_of(directory: Path) -> dict[str, tuple[str, bool]]:
    """Every attempt that the keeper ever started: its token, the job, and whether it is known to have ended."""
    path = directory / "keeper.db"
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)) as journal:
            rows = journal.execute("SELECT token, job, end_number IS NOT NULL FROM attempts").fetchall()
    except sqlite3.Error as error:
        raise CoadaptError(f"the keeper's journal {path} cannot be read: {error}") from None
    return {str(token): (str(job), bool(ended)) for token, job, ended in rows}


def orphans_of(directory: Path) -> tuple[int, str]:
    """How many processes that had left their attempts keepers of the directory have ended, and the last of them."""
    path = directory / "keeper.db"
    if not path.exists():
        return 0, ""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)) as journal:
            found = dict(journal.execute("SELECT key, value FROM meta WHERE key LIKE '%orphan%'").fetchall())
    except sqlite3.Error as error:
        raise CoadaptError(f"the keeper's journal {path} cannot be read: {error}") from None
    return int(found.get("orphans", 0)), str(found.get("last orphan", ""))


def leftovers(tokens: Iterable[str], directory: Path | None = None) -> dict[int, str]:
    """Living processes of attempts: pid -> token. They carry one of the tokens, or are in a control group of a keeper's
    ``directory``.
    """
    known = frozenset(tokens)
    found = {} if directory is None else control_groups.grouped(directory)
    marked = {each.pid: each.token for each in ProcessTable().processes.values() if each.token in known}
    return {**found, **marked}


def end_leftovers(directory: Path, tokens: Iterable[str]) -> set[int]:
    """Kills all processes of attempts, and returns their pids. CoadaptError if a process survives."""
    tokens, killed = list(tokens), set[int]()
    deadline = time.monotonic() + PATIENCE_S
    while left := leftovers(tokens, directory):
        control_groups.kill_all(directory)
        if time.monotonic() > deadline:
            raise CoadaptError(
                f"processes {', '.join(map(str, sorted(left)))} are still running after SIGKILL"
            )
        killed |= set(left)
        signal_each(left, signal.SIGKILL)
        time.sleep(_LOOK_S)
    control_groups.kill_all(directory)  # removes the empty groups
    return killed


def examine(directory: Path, *, served: bool) -> Iterator[tuple[str, Literal["ok", "warn", "bad"], str, str]]:
    """Returns findings for ``coadapt doctor``: subject, verdict (ok, warn, bad), text and remedy. ``served``: a keeper
    should run.
    """
    runs = keeper_runs(directory)
    if runs:
        yield "keeper", "ok", f"running as process {pid_in(keeper_lock(directory))}", ""
    elif served:
        remedy = f"see {directory / 'keeper.log'}"
        yield "keeper", "bad", "not running although the cluster is served", remedy
    else:
        yield "keeper", "ok", "does not run, and no job does", ""
    tokens = tokens_of(directory)
    left = leftovers(tokens, directory)
    gone = {token for token, (_, ended) in tokens.items() if ended}
    stray = {pid: token for pid, token in left.items() if token in gone or token not in tokens or not runs}
    strangers = _strangers(directory, tokens.keys() - gone) if runs else []
    orphans, last = orphans_of(directory)
    if stray:
        jobs = {
            pid: tokens[token][0] if token in tokens else "an unknown job" for pid, token in stray.items()
        }
        names = ", ".join(f"{pid} of {job}" for pid, job in sorted(jobs.items())[:5])
        text = f"{_processes(len(stray))} outlived their job: {names}"
        yield "orphans", "bad", text, "coadapt down kills them"
    elif strangers:
        names = ", ".join(map(str, strangers[:5]))
        text = f"{_processes(len(strangers))} found outside of their job; the keeper is ending them: {names}"
        yield "orphans", "warn", text, f"see {directory / 'keeper.log'} if they stay"
    else:
        past = f"; {orphans} that had left their jobs were killed, the last: {last}" if orphans else ""
        yield "orphans", "ok", f"none; {_processes(len(left))} of running jobs{past}", ""
    if runs:
        yield "isolation", "ok", _isolation(directory), ""


def _isolation(directory: Path) -> str:
    """How processes of an attempt are kept together, in a few words."""
    found = control_groups.bases(directory)
    if not found or not Path(found[-1].path).is_dir():
        return "no control groups here; processes that leave their job are found as children of the keeper"
    return f"a control group for each attempt ({control_groups.ControlGroups(found[-1]).description})"


def _strangers(directory: Path, live: Collection[str]) -> list[int]:
    """Children of the keeper that belong to no attempt."""
    keeper, table = pid_in(keeper_lock(directory)), ProcessTable()
    grouped = control_groups.grouped(directory)
    found = []
    for each in table.processes.values():
        if each.parent == keeper and each.token not in live and grouped.get(each.pid) not in live:
            with suppress(OSError):
                words = Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
                leads = each.session == each.pid and each.pid in _leaders(directory)
                if not leads and _STORE not in words:
                    found.append(each.pid)
    return sorted(found)


def _leaders(directory: Path) -> set[int]:
    with closing(
        sqlite3.connect(f"file:{directory / 'keeper.db'}?mode=ro", uri=True, timeout=10.0)
    ) as journal:
        rows = journal.execute("SELECT leader FROM leaders").fetchall()
    return {msgspec.json.decode(data, type=Leader).pid for (data,) in rows}


# -- processes that hold a lock ------------------------------------------------------------------------


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of the file."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def pid_in(path: Path) -> int | None:
    """Returns the pid that the last holder wrote into the lock file."""
    try:
        first = path.read_text().split()[:1]
    except OSError:
        return None
    return int(first[0]) if first and first[0].isdigit() else None


def end_holder(lock: Path, what: str, patience_s: float) -> bool:
    """Ends the process that holds a lock; False if none does. CoadaptError if it will not end."""
    if not is_locked(lock):
        return False
    pid = pid_in(lock)
    if pid is None:
        raise CoadaptError(f"a {what} holds {lock}, but the file does not contain its process id")
    began = started_ticks(pid)
    # it releases its lock a moment before it exits
    end_process(
        pid, lambda: not is_locked(lock) and (began is None or started_ticks(pid) != began), patience_s
    )
    return True


def end_process(pid: int, ended: Callable[[], bool], patience_s: float) -> None:
    """Asks a process to end, and kills it after ``patience_s``; CoadaptError if it is not ``ended`` then."""
    for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, PATIENCE_S)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if ended():
                return
            time.sleep(_LOOK_S)
    raise CoadaptError(f"process {pid} is still running after SIGKILL")
