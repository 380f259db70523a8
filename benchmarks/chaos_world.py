"""A live cluster that is to suffer: its processes found, killed and stopped, its disk filled, its store held up, its clock moved."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.chaos_postgres import Postgres
from coadapt.executors.node.keeper_shutdown import is_locked, pid_in
from coadapt.executors.node.processes import started_ticks
from coadapt.store.home import Home

HERE = Path(__file__).resolve().parent
#: Seconds that anything may take: the machine may stand still for minutes.
PATIENCE_S = 300.0
NODES, GPUS = 2, 2
#: A controller without progress for so long is replaced.
LIVENESS_S = 8.0
#: Of the disk that is filled.
_DISK = "64m"
_MODULES = {
    "api": "coadapt.live.api_process",
    "controller": "coadapt.live.controller_process",
    "keeper": "coadapt.executors.node.keeper",
    "supervisor": "coadapt.cli.main",
}


class World:
    """One home, on a disk of its own where mounting is allowed.

    Args:
        path: directory of everything.
        policy: name of the policy.
        options: of the policy.
        groups: whether the keeper may make control groups.
        postgres: server of the store; None: the store is a file.
    """

    def __init__(
        self,
        path: Path,
        policy: str,
        options: tuple[str, ...] = (),
        *,
        groups: bool = True,
        postgres: Postgres | None = None,
    ) -> None:
        self.path, self.policy, self.options = path, policy, options
        self.groups, self.postgres = groups, postgres
        #: Controllers that were started beside the supervisor's own.
        self._rivals: list[subprocess.Popen[bytes]] = []
        self.home = Home(path / "home")
        self.clock = path / "clock"
        self._server: subprocess.Popen[bytes] | None = None
        self.home.path.mkdir()
        self.mounted = _mount(self.home.path)
        #: Homes that were replaced by a restore, and those of them that are disks of their own.
        self.former: list[Home] = []
        self._disks = [self.home.path] if self.mounted else []

    # -- its processes -------------------------------------------------------------------------------

    def serve(self) -> None:
        """Starts ``coadapt serve`` unless it runs."""
        if self._server is not None and self._server.poll() is None:
            return
        until(lambda: not is_locked(self.home.lock), "the old supervisor's lock does not get free")
        command = [sys.executable, "-m", "coadapt.cli.main", "serve", "--home", str(self.home.path)]
        if not self.home.options_file.exists():
            command += ["--virtual", f"{NODES}x{GPUS}:t4", "--policy", self.policy, "--grace-period", "2"]
            command += ["--listen", "127.0.0.1:0", "--liveness", f"{LIVENESS_S:g}s"]
            if self.postgres is not None:
                command += ["--store", self.postgres.url]
            for option in self.options:
                command += ["--policy-option", option]
        with (self.path / "serve.out").open("ab") as output:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CHAOS_CLOCK": str(self.clock),
            "COADAPT_CONTROL_GROUPS": "auto" if self.groups else "none",
            "PYTHONPATH": f"{HERE / 'chaos_clock'}:{os.environ.get('PYTHONPATH', '')}",
        }

    def find(self, what: str) -> int | None:
        """The pid of the process of this home that is called so."""
        if what == "keeper":  # its warden has the same command line
            held = pid_in(self.home.keeper / "keeper.lock")
            return held if held is not None and is_locked(self.home.keeper / "keeper.lock") else None
        for pid, line in self.processes():
            arguments = line.split("\0")
            if _MODULES[what] in arguments and (what != "supervisor" or "serve" in arguments):
                return pid
        return None

    def kill(self, what: str) -> bool:
        """SIGKILL; False if there is no such process right now."""
        pid = self.find(what)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if what == "supervisor" and self._server is not None:
            self._server.wait()
        return True

    def hang(self, seconds: float) -> bool:
        """Stops the controller; goes on after ``seconds``, unless the supervisor has replaced it by then."""
        pid = self.find("controller")
        began = None if pid is None else started_ticks(pid)
        if pid is None or began is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            if started_ticks(pid) == began:
                os.kill(pid, signal.SIGCONT)
        return True

    def second_controller(self) -> None:
        """Starts another controller on the same home; it is killed when the next is started, or at the end."""
        self.end_rivals()
        with (self.path / "second.out").open("ab") as output:
            self._rivals.append(
                subprocess.Popen(
                    [sys.executable, "-m", _MODULES["controller"], str(self.home.path)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=self._environment(),
                )
            )

    def end_rivals(self) -> None:
        """Kills the controllers that were started beside the supervisor's own: nobody else replaces one that hangs."""
        for process in self._rivals:
            process.kill()
            process.wait()
        self._rivals.clear()

    def processes(self) -> Iterator[tuple[int, str]]:
        """Living processes that name this world's directory in their command line."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    line = (entry / "cmdline").read_bytes().decode(errors="replace")
                    if str(self.path) in line and started_ticks(int(entry.name)) is not None:
                        yield int(entry.name), line

    def down(self) -> str:
        """``coadapt down``; what it said wrong, if anything."""
        self.end_rivals()
        done = subprocess.run(
            [sys.executable, "-m", "coadapt.cli.main", "down", "--home", str(self.home.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if self._server is not None:
            self._server.wait()
        return "" if done.returncode == 0 else done.stderr.strip() or f"ended with {done.returncode}"

    def close(self) -> None:
        """Whatever happened, nothing is left."""
        self.end_rivals()
        for pid, _ in list(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
        for path in self._disks:
            until(lambda path=path: _unmount(path), "the disk is still in use")  # type: ignore[misc]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``coadapt``."""
        return subprocess.run(
            [sys.executable, "-m", "coadapt.cli.main", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
        )

    def kill_everything(self) -> None:
        """SIGKILL of the supervisor, then of all that it and others have started; replicas die with their keeper."""
        self.end_rivals()
        locks = (self.home.lock, self.home.keeper / "keeper.lock")

        def dead() -> bool:
            # again: one that was about to be started may have escaped
            found = [self.kill(what) for what in ("supervisor", "controller", "api", "keeper")]
            return not any(found) and not any(map(is_locked, locks))

        until(dead, "a killed cluster still holds its locks")

    def move_to(self, home: Home) -> None:
        """Goes on with another home, a restored one. What replicas wrote before is kept apart: numbers are used again."""
        lives = self.path / "lives"
        if lives.exists():
            lives.rename(self.path / f"lives-{len(self.former)}")
        self.former.append(self.home)
        self.home, self.mounted = home, False

    # -- what is done to it --------------------------------------------------------------------------

    def fill_disk(self, seconds: float) -> None:
        """No free space for a while; where there is no disk of its own, no file may grow."""
        if not self.mounted:
            self._limit_files(seconds)
            return
        ballast = self.home.path / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(512))
            time.sleep(seconds)
        finally:
            ballast.unlink(missing_ok=True)

    def _limit_files(self, seconds: float) -> None:
        limited = [pid for name in ("api", "controller", "keeper") if (pid := self.find(name)) is not None]
        for size in (1, resource.RLIM_INFINITY):
            for pid in limited:
                with contextlib.suppress(OSError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            if size == 1:
                time.sleep(seconds)

    def hold_store(self, name: str, seconds: float) -> bool:
        """Locks the store (or the keeper's journal) for a while; False where the lock could not be taken."""
        path = {"store": self.home.path / "store.db", "journal": self.home.keeper / "keeper.db"}[name]
        if not path.exists() or (name == "store" and self.postgres is not None):
            return False
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=1.0)) as store,
        ):
            store.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            store.execute("ROLLBACK")
            return True
        return False

    def move_clock(self, offset_s: float) -> None:
        """The wall clock of all our processes is wrong by so much from now on."""
        self.clock.write_text(f"{offset_s}")


def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits; RuntimeError if it does not come true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(what)
        time.sleep(0.05)


def _mount(path: Path) -> bool:
    if os.getuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=700", "coadapt-chaos", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unmount(path: Path) -> bool:
    return subprocess.run(["umount", str(path)], capture_output=True, check=False).returncode == 0
