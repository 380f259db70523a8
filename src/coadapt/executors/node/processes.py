"""Processes on this machine: started so that none outlives its keeper, recognised when one did, and killed by the kernel or not.

A pid alone is ambiguous, since pids are reused; a process is identified by its pid *and* its start time. All
processes of an attempt carry its token in their environment, inherited by whatever they start, and all
processes of a replica are in the replica's own session. A process is ours if either is true.

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


def start(
    command: Sequence[str],
    envs: Mapping[str, str],
    out: Path,
    err: Path,
    *,
    workdir: str = "",
    cores: Iterable[int] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a replica in its own session; it is killed when this process dies. OSError if it cannot run.

    Args:
        command: program and arguments.
        envs: the whole environment.
        out: file that standard output is appended to.
        err: file that standard error is appended to.
        workdir: working directory; empty: that of this process.
        cores: the only cores it may use; None: all.
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
            preexec_fn=dies_with(os.getpid(), cores),
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


def remaining(token: str, leaders: Iterable[Leader] = (), *, member: str = "") -> set[int]:
    """Pids of all living processes of an attempt; of one ``member`` of it, if that is named."""
    sessions = {leader.pid: leader for leader in leaders if leader.boot == boot_id()}
    markers = {f"{Variable.TOKEN}={token}".encode()}
    if member:
        markers.add(f"{Variable.MEMBER}={member}".encode())
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _belongs(int(entry.name), markers, sessions):
            found.add(int(entry.name))
    return found


def children() -> set[int]:
    """Returns the pids of this process's children, those among them that fell to it when their parents died."""
    me, found = str(os.getpid()), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None and fields[1] == me:
            found.add(int(entry.name))
    return found


def signal_each(pids: Iterable[int], number: int) -> None:
    """Signals each process; one that has exited is ignored."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _belongs(pid: int, markers: set[bytes], sessions: Mapping[int, Leader]) -> bool:
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return False
    leader = sessions.get(int(fields[3]))
    if leader is not None and int(fields[19]) >= leader.started:
        # the number of a session is not reused while it has members; a new leader means a new session
        now_leads = started_ticks(leader.pid)
        if now_leads is None or now_leads == leader.started:
            return True
    try:
        return markers <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False  # gone, or of another user


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; the name before it may hold blanks and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def dies_with(parent: int, cores: Iterable[int] | None = None) -> Callable[[], None]:
    """Returns a function for a child to call before exec: it is killed when ``parent`` dies, and pinned to ``cores``."""
    pinned = None if cores is None else frozenset(cores)

    def in_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        if pinned:
            os.sched_setaffinity(0, pinned)

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
