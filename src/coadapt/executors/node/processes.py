"""Processes on this machine: started so that none outlives its keeper, recognised when one did, and killed by the kernel or not.

A pid alone is ambiguous, since pids are reused; a process is identified by its pid *and* its start time. All
processes of an attempt carry its token in their environment, inherited by whatever they start, and all
processes of a replica are in the replica's own session. A process is ours if either is true. One that has neither mark
any more is found by its control group (``control_groups``) or by its parent (``orphans``).

``ProcessTable`` is one look at all processes: looking costs about 50 microseconds a process, so that one look per turn
has to do for all attempts.

``OomWatch`` counts the processes that the kernel killed for lack of memory, to tell such a SIGKILL from any other.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from coadapt.wire.agent import Variable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The first process of a replica; leader of its session and process group."""

    pid: int
    #: Clock ticks since boot.
    started: int
    boot: str


def boot_id() -> str:
    """Returns the id of this boot of the machine: start times count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started_ticks(pid: int) -> int | None:
    """Returns when the process started; None if there is none. A zombie counts as none, since it runs nothing."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def this_process() -> str:
    """A name of this process that no other one has had or will have."""
    return f"{socket.gethostname()}/{boot_id()}/{os.getpid()}/{started_ticks(os.getpid())}"


def is_gone(name: str) -> bool:
    """Whether the process called so by ``this_process`` is known to be dead; False if in doubt."""
    host, boot, pid, started = name.split("/")
    if host != socket.gethostname():
        return False
    return boot != boot_id() or str(started_ticks(int(pid))) != started


def adopt_orphans() -> None:
    """From now on processes whose parents died become children of this one, which must reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Confinement(NamedTuple):
    """What a process is confined to before it executes a program.

    ``cores``: the only cores it may use; None: all. ``groups``: files ``cgroup.procs`` of the control groups that it joins.
    ``account``: user id, group id and other groups that it runs as; None: those of this process. ``reaper``: whether
    processes below it stay below it while it lives.
    """

    cores: frozenset[int] | None = None
    groups: tuple[str, ...] = ()
    account: tuple[int, int, tuple[int, ...]] | None = None
    reaper: bool = False


UNCONFINED = Confinement()


def start(
    command: Sequence[str],
    envs: Mapping[str, str],
    out: Path,
    err: Path,
    *,
    workdir: str = "",
    confinement: Confinement = UNCONFINED,
) -> subprocess.Popen[bytes]:
    """Starts a replica in its own session; it is killed when this process dies. OSError if it cannot run.

    Args:
        command: program and arguments.
        envs: the whole environment.
        out: file that standard output is appended to.
        err: file that standard error is appended to.
        workdir: working directory; empty: that of this process.
        confinement: what it is confined to.
    """
    with open(out, "ab", opener=_private) as stdout, open(err, "ab", opener=_private) as stderr:
        return subprocess.Popen(
            command,
            env=dict(envs),
            cwd=workdir or None,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid(), confinement),
        )


def leader_of(process: subprocess.Popen[bytes]) -> Leader:
    """Returns the identity by which the process is recognised later."""
    fields = _stat(process.pid)
    assert fields is not None, "a child that was not reaped has an entry in /proc"
    return Leader(pid=process.pid, started=int(fields[19]), boot=boot_id())


def signal_group(pid: int, number: int) -> None:
    """Signals a replica's process group, whose leader has not been reaped (so the number is still its own)."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


class ProcessEntry(NamedTuple):
    """One living process. ``token`` and ``member`` are from its environment; empty: none, or not readable."""

    pid: int
    parent: int
    session: int
    started: int
    token: str = ""
    member: str = ""


class ProcessTable:
    """All living processes at one moment; zombies are none."""

    #: Number of looks that this process has taken: what tests guard.
    looks = 0

    def __init__(self) -> None:
        ProcessTable.looks += 1
        self.processes: dict[int, ProcessEntry] = {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and (found := entry_of(int(path.name))) is not None:
                self.processes[found.pid] = found
        self._boot = boot_id()

    def of_attempt(self, token: str, leaders: Iterable[Leader] = (), *, member: str = "") -> set[int]:
        """Pids of the processes of an attempt by their marks; of one ``member`` of it, if that is named."""
        sessions = {leader.pid: leader for leader in leaders if leader.boot == self._boot}
        return {
            each.pid
            for each in self.processes.values()
            if (each.token == token and (not member or each.member == member))
            or self._in_session(each, sessions.get(each.session))
        }

    def below(self, parents: Iterable[int]) -> set[int]:
        """Pids of the processes ``parents`` and of all their descendants."""
        children: dict[int, list[int]] = {}
        for each in self.processes.values():
            children.setdefault(each.parent, []).append(each.pid)
        found: set[int] = set()
        waiting = [pid for pid in parents if pid in self.processes]
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting += children.get(pid, ())
        return found

    def _in_session(self, each: ProcessEntry, leader: Leader | None) -> bool:
        if leader is None or each.started < leader.started:
            return False
        # the number of a session is not reused while it has members; a new leader means a new session
        leads = self.processes.get(leader.pid)
        return leads is None or leads.started == leader.started


def remaining(token: str, leaders: Iterable[Leader] = (), *, member: str = "") -> set[int]:
    """Pids of all living processes of an attempt; of one ``member`` of it, if that is named."""
    return ProcessTable().of_attempt(token, leaders, member=member)


def signal_each(pids: Iterable[int], number: int) -> None:
    """Signals each process; one that has exited is ignored."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


_TOKEN, _MEMBER = f"{Variable.TOKEN}=".encode(), f"{Variable.MEMBER}=".encode()


def entry_of(pid: int) -> ProcessEntry | None:
    """Returns what /proc shows of one process; None if it is none, or a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    token = member = b""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        environment = b""  # gone, or of another user
    if _TOKEN in environment:
        for part in environment.split(b"\0"):
            if part.startswith(_TOKEN):
                token = part[len(_TOKEN) :]
            elif part.startswith(_MEMBER):
                member = part[len(_MEMBER) :]
    return ProcessEntry(
        pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        token=token.decode(errors="replace"),
        member=member.decode(errors="replace"),
    )


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; the name before it may hold blanks and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def dies_with(parent: int, confinement: Confinement = UNCONFINED) -> Callable[[], None]:
    """Returns a function for a child to call before exec: it is killed when ``parent`` dies, and confined."""

    def in_child() -> None:
        for path in confinement.groups:
            with Path(path).open("w") as group:
                group.write("0")
        if confinement.reaper:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if confinement.cores:
            os.sched_setaffinity(0, confinement.cores)
        if confinement.account is not None:
            user, group_id, others = confinement.account
            os.setgroups(others)
            os.setresgid(group_id, group_id, group_id)
            os.setresuid(user, user, user)
        # last, since a change of the user clears it
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return in_child


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


#: Most seconds between a kill and the moment at which it is noticed.
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
