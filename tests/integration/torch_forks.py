"""Replicas as real processes that share one import of PyTorch: forked from a server that has it loaded.

Each replica is a process of its own with its own environment, output files, signals and exit code; only the two seconds of
importing are not paid again and again.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.waiting import DEADLINE_S, until

SCRIPTS = Path(__file__).parent / "scripts"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.integration.torch_loaded"])


#: Below those that the kernel gives to whoever asks for any port.
_PORTS = range(20_000, 30_000)
_taken: list[int] = []


def free_port() -> int:
    """A port for somebody who listens on it later: nobody else does until this process ends.

    The kernel gives none of these to programs that take any, and tests beside us see by a lock that it is ours.
    """
    directory = Path(tempfile.gettempdir()) / f"coadapt-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    first = os.getpid() * 97 % len(_PORTS)
    ports: list[int] = [*_PORTS[first:], *_PORTS[:first]]
    for port in ports:
        lock = os.open(directory / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            continue
        _taken.append(lock)
        return port
    raise AssertionError("no port is free")


class Replicas:
    """A script as so many replicas, in ``directory``; output goes to RANK.out there."""

    def __init__(
        self,
        script: str,
        count: int,
        directory: Path,
        *,
        arguments: Sequence[str] = (),
        **envs: str,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.count = directory, count
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
        self.processes = [
            start(
                SCRIPTS / script,
                arguments,
                {**common, "RANK": str(r), "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(count), **envs},
                directory / f"{r}.out",
            )
            for r in range(count)
        ]

    def signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Sends a signal to some replicas that live, or to all."""
        for rank in range(self.count) if ranks is None else ranks:
            process = self.processes[rank]
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def wait(self) -> list[int | None]:
        """Exit codes, once all have ended; who outstays is killed, and has None."""
        return wait(self.processes)

    def output(self, rank: int = 0) -> str:
        """What a replica has written."""
        return (self.directory / f"{rank}.out").read_text()


def wait(processes: Sequence[BaseProcess]) -> list[int | None]:
    """See ``Replicas.wait``."""
    until, codes = time.monotonic() + DEADLINE_S, []
    for process in processes:
        process.join(max(until - time.monotonic(), 0))
        codes.append(process.exitcode)
        if process.exitcode is None:
            process.kill()
            process.join()
    return codes


def until_more_steps(audit: Path, count: int) -> None:
    """Returns once the journal of steps has ``count`` lines more than now."""
    goal = audit.read_bytes().count(b"\n") + count
    until(lambda: audit.read_bytes().count(b"\n") >= goal, f"{count} more steps in {audit}")


def run(script: str, count: int, directory: Path, *, arguments: Sequence[str] = (), **envs: str) -> str:
    """Runs a script to its end and returns the first replica's output; all must succeed."""
    replicas = Replicas(script, count, directory, arguments=arguments, **envs)
    codes = replicas.wait()
    said = "\n".join(f"--- {r}\n{replicas.output(r)[-3000:]}" for r in range(count))
    assert codes == [0] * count, f"exit codes {codes}\n{said}"
    return replicas.output()


def start(script: Path, arguments: Sequence[str], envs: Mapping[str, str], out: Path) -> BaseProcess:
    """Starts one process."""
    out.touch()
    process = _context.Process(
        target=_main, args=(str(script), list(arguments), dict(envs), str(out)), daemon=True
    )
    process.start()
    return process


def call(
    function: Callable[..., None], *arguments: object, envs: Mapping[str, str], out: Path
) -> BaseProcess:
    """Starts a function of a module in a process of its own, which may start others."""
    out.touch()
    process = _context.Process(target=_call, args=(function, arguments, dict(envs), str(out)))
    process.start()
    return process


def _call(
    function: Callable[..., None], arguments: tuple[object, ...], envs: dict[str, str], out: str
) -> None:
    _become(envs, out)
    function(*arguments)


def _main(script: str, arguments: list[str], envs: dict[str, str], out: str) -> None:
    _become(envs, out)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        # as an interpreter does; a forked process would print a traceback of its own
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def _become(envs: Mapping[str, str], out: str) -> None:
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(envs)
