"""Control groups (cgroups): one for each attempt, with one for each of its members in it.

A member joins its group before it executes a program, so that everything it ever starts is in the group, whatever it does
to its session and its environment. Only root can leave a group.

    BASE = the keeper's own group / coadapt-HASH      HASH: of the keeper's directory
    BASE/TOKEN/MEMBER

Groups are killed by ``cgroup.kill`` (v2, Linux 5.14), also where v2 is mounted beside v1, else by the v1 freezer: frozen
processes cannot fork, so that signalling all of them reaches all of them. Limits of memory and cores need the controller
of that name: in v1 its hierarchy, where groups are made only for members with a limit; in v2 that the keeper's group, or
the delegated group above it, passes the controller on.

Groups outlive their keeper. The file ``groups.json`` in the keeper's directory names every base that was used, so that the
next keeper, ``coadapt down`` and ``coadapt doctor`` find what is in them, whatever group they themselves run in.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from coadapt.executors.node.processes import signal_each
from coadapt.wire.node_messages import Limits

log = logging.getLogger(__name__)

Kind = Literal["v1", "v2"]
_FILE = "groups.json"
#: Looks at a freezer until it has frozen, and seconds between two.
_FREEZE_LOOKS, _FREEZE_S = 20, 0.001
_PERIOD_US = 100_000


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Where a keeper makes its groups. ``controllers``: directories (v1) of controllers for limits, by controller; the same
    directory for v2.
    """

    path: str
    kind: Kind
    controllers: dict[str, str] = {}


class Hierarchy(NamedTuple):
    """One mounted hierarchy, and the directory of this process's group in it."""

    kind: Kind
    controllers: frozenset[str]
    own: Path


def hierarchies(
    mounts: Path = Path("/proc/self/mountinfo"), groups: Path = Path("/proc/self/cgroup")
) -> list[Hierarchy]:
    """Returns the hierarchies that this process can see; ``mounts`` and ``groups`` are the kernel's files."""
    try:
        lines, own = mounts.read_text().splitlines(), groups.read_text().splitlines()
    except OSError:
        return []
    paths = {}
    for line in own:
        _, names, path = line.split(":", 2)
        paths[frozenset(names.split(",")) if names else frozenset[str]()] = path
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            there = frozenset(options.split(","))
            controllers = next((each for each in paths if each and each <= there), None)
        else:
            controllers = frozenset() if kind == "cgroup2" else None
        if controllers is None or controllers not in paths:
            continue
        inside = os.path.relpath(paths[controllers], root)
        if not inside.startswith(".."):
            place = Path(os.path.normpath(Path(point) / inside))
            found.append(Hierarchy("v1" if controllers else "v2", controllers, place))
    return found


def make_base(
    directory: Path,
    seen: Iterable[Hierarchy] | None = None,
    *,
    make: Callable[[Path], None] = lambda path: path.mkdir(exist_ok=True),
) -> Base | None:
    """Makes the base of a keeper's groups; None where this process may not make groups.

    Args:
        directory: of the keeper.
        seen: hierarchies; None: those of this machine.
        make: makes a group.
    """
    known = hierarchies() if seen is None else list(seen)
    name = f"coadapt-{hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:12]}"
    v1 = {c: str(each.own / name) for each in known if each.kind == "v1" for c in each.controllers}
    limits = {name: path for name, path in v1.items() if name in ("memory", "cpu")}
    for each in known:
        if each.kind == "v2":
            for parent, enabled in _parents(each.own):
                path = parent / name
                if _made(path, make) and (path / "cgroup.kill").exists() and _can_join(path, make):
                    _pass_on(path, enabled)
                    own = {c: str(path) for c in enabled}
                    return Base(path=str(path), kind="v2", controllers={**limits, **own})
    if "freezer" in v1:
        path = Path(v1["freezer"])
        if _made(path, make) and (path / "freezer.state").exists() and _can_join(path, make):
            return Base(path=str(path), kind="v1", controllers=limits)
    return None


def _parents(own: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Where a base could be made in v2, the best first, and the controllers that it would have there."""
    delegated = _delegated(own.parent)
    for parent in (own, own.parent) if delegated else (own,):
        enabled = _pass_on(parent, ("memory", "cpu"))
        if enabled:
            yield parent, enabled
    yield own, ()


def _delegated(path: Path) -> bool:
    """Whether systemd has given this group away (``Delegate=yes`` with ``DelegateSubgroup=``)."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def _pass_on(path: Path, controllers: Iterable[str]) -> tuple[str, ...]:
    """Enables controllers for the groups in ``path``; returns those that are."""
    for each in controllers:
        with suppress(OSError):  # not offered here, or the group has processes of its own
            _write(path / "cgroup.subtree_control", f"+{each}")
    enabled = _read(path / "cgroup.subtree_control").split()
    return tuple(each for each in controllers if each in enabled)


def _made(path: Path, make: Callable[[Path], None]) -> bool:
    try:
        make(path)
    except OSError:
        return False
    return True


def _can_join(path: Path, make: Callable[[Path], None]) -> bool:
    """Whether a process of ours can join a group below ``path``: tried by one that ends at once."""
    probe = path / "probe"
    if not _made(probe, make):
        return False
    child = os.fork()
    if child == 0:
        try:
            _write(probe / "cgroup.procs", "0")
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    _remove(probe)
    return status == 0


class ControlGroups:
    """The groups of one keeper.

    Args:
        base: where they are.
        make: makes a group.
    """

    def __init__(
        self,
        base: Base,
        *,
        make: Callable[[Path], None] = lambda path: path.mkdir(parents=True, exist_ok=True),
    ) -> None:
        self.base, self._make = base, make
        self.path = Path(base.path)

    @property
    def description(self) -> str:
        """What there is, in a few words."""
        limits = [name for name in ("memory", "cpu") if name in self.base.controllers]
        return f"cgroup {self.base.kind}" + (f", limits of {', '.join(limits)}" if limits else ", no limits")

    def join(self, token: str, member: str, limits: Limits) -> tuple[str, ...]:
        """Makes the group of a member; returns the files that a process joins it by. OSError if it cannot be made.

        Args:
            token: of the attempt.
            member: its name.
            limits: of memory and cores.
        """
        own = self.path / token / member
        self._make(own)
        files = [str(own / "cgroup.procs")]
        wanted = {"memory": limits.memory_bytes > 0, "cpu": limits.cpus > 0}
        for name in (name for name, asked in wanted.items() if asked):
            base = self.base.controllers.get(name)
            if base is None:
                log.warning("a replica's limit of %s is not enforced: the controller is not available", name)
                continue
            in_v2 = base == self.base.path and self.base.kind == "v2"
            group = own if in_v2 else Path(base) / token / member
            if in_v2:
                _pass_on(self.path / token, (name,))
            else:
                self._make(group)
                files.append(str(group / "cgroup.procs"))
            for file, value in _settings(name, limits, in_v2=in_v2):
                _write(group / file, value)
        return tuple(files)

    def pids(self, token: str, member: str = "") -> set[int]:
        """Returns the processes of an attempt, or of one member."""
        return set(_pids(self._of(token, member)))

    def populated(self, token: str, member: str = "") -> bool:
        """Whether any process is left in the group of an attempt, or of one member."""
        path = self._of(token, member)
        events = _read(path / "cgroup.events")
        if "populated 0" in events:
            return False
        return "populated 1" in events or any(True for _ in _pids(path))

    def kill(self, token: str, member: str = "") -> None:
        """Kills all processes of an attempt, or of one member; those that a signal does not reach at once later."""
        kill(self._of(token, member), self.base.kind)

    def remove(self, token: str) -> None:
        """Removes the groups of an attempt without processes."""
        for base in {self.base.path, *self.base.controllers.values()}:
            _remove(Path(base) / token)

    def out_of_memory(self, token: str, member: str) -> bool:
        """Whether the kernel has killed a process of a member at its own limit of memory."""
        base = self.base.controllers.get("memory")
        if base is None:
            return False
        group = Path(base) / token / member
        text = _read(group / "memory.events") or _read(group / "memory.oom_control")
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in text.splitlines())

    def token_of(self, pid: int) -> str | None:
        """Returns the token of the attempt in whose group a process is; None: in none of ours."""
        name = f"/{self.path.name}/"
        for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines():
            _, _, path = line.split(":", 2)
            if name in f"{path}/":
                token = path.partition(name)[2].partition("/")[0]
                if token:
                    return token
        return None

    def _of(self, token: str, member: str) -> Path:
        return self.path / token / member if member else self.path / token


def _settings(name: str, limits: Limits, *, in_v2: bool) -> Iterator[tuple[str, str]]:
    """Files of a controller and what is written to them."""
    if name == "memory":
        yield "memory.max" if in_v2 else "memory.limit_in_bytes", str(int(limits.memory_bytes))
        return
    quota = max(int(limits.cpus * _PERIOD_US), 1000)
    if in_v2:
        yield "cpu.max", f"{quota} {_PERIOD_US}"
    else:
        yield "cpu.cfs_period_us", str(_PERIOD_US)
        yield "cpu.cfs_quota_us", str(quota)


def kill(path: Path, kind: Kind) -> None:
    """Kills everything in a group and the groups below it."""
    if kind == "v2":
        with suppress(OSError):
            _write(path / "cgroup.kill", "1")
        return
    with suppress(OSError):
        _write(path / "freezer.state", "FROZEN")
        for _ in range(_FREEZE_LOOKS):
            if _read(path / "freezer.state").strip() == "FROZEN":
                break
            time.sleep(_FREEZE_S)
    signal_each(_pids(path), signal.SIGKILL)
    for group in _groups(path):  # one that a job has made and frozen itself, too
        with suppress(OSError):
            _write(group / "freezer.state", "THAWED")


# -- seen from other processes ---------------------------------------------------------------------------


def bases(directory: Path) -> list[Base]:
    """Returns every base that keepers of a directory have used and that may still have groups."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=list[Base])
    except (OSError, msgspec.MsgspecError):
        return []


def note_base(directory: Path, base: Base) -> None:
    """Writes down a base before the first group in it exists."""
    known = [each for each in bases(directory) if Path(each.path).is_dir() and each.path != base.path]
    part = directory / f".{_FILE}.part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode([*known, base]))
    part.replace(directory / _FILE)


def grouped(directory: Path) -> dict[int, str]:
    """Returns the processes in groups of a keeper's directory: pid -> token."""
    found = {}
    for base in bases(directory):
        with suppress(OSError):
            for attempt in os.scandir(base.path):
                if attempt.is_dir():
                    for pid in _pids(Path(attempt.path)):
                        found[pid] = attempt.name
    return found


def kill_all(directory: Path, *, keep: str = "") -> None:
    """Kills everything in groups of a keeper's directory, and removes empty groups.

    The base ``keep`` stays: a keeper that has just made it will use it.
    """
    for base in bases(directory):
        kill(Path(base.path), base.kind)
        for path in {base.path, *base.controllers.values()}:
            for inner in _inside(Path(path)) if base.path == keep else (Path(path),):
                _remove(inner)


def _inside(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if each.is_dir()] if path.is_dir() else []


# -- files -----------------------------------------------------------------------------------------------


def _groups(path: Path) -> Iterator[Path]:
    """The group and all below it, the deepest first."""
    for directory, _, _ in os.walk(path, topdown=False):
        yield Path(directory)


def _pids(path: Path) -> Iterator[int]:
    for group in _groups(path):
        yield from (int(word) for word in _read(group / "cgroup.procs").split())


def _remove(path: Path) -> None:
    for group in _groups(path):
        with suppress(OSError):  # a process is left, or it is gone
            group.rmdir()


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
