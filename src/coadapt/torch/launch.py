"""``python -m coadapt.torch.launch --replicas 2 train.py ARGS``: run replicas of a script on this machine and resize them.

The launcher hosts the rendezvous store, so that any replica may leave. It executes commands from standard input: ``resize N`` (in
place), ``restart N``, ``stop``, ``kill``; the result of each is a JSON line on standard output.
Replicas write to standard error, or to files in ``--logs``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from coadapt.errors import CoadaptError
from coadapt.torch.elastic.notices import Notice
from coadapt.torch.elastic.rendezvous_process import Rendezvous, hosted
from coadapt.wire.agent import Variable

_POLL_S = 0.01


class LaunchError(CoadaptError):
    """A command could not be executed."""


class Launcher:
    """Owns the replica processes of one job. Every start is a new attempt, every resize a new generation; names are never reused."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        envs: dict[str, str] | None = None,
        logs: Path | None = None,
        patience_s: float = 600.0,
    ) -> None:
        """Run ``command`` with environment ``envs``, output in directory ``logs`` (None: standard error).

        A replica that does not answer within ``patience_s`` makes a command fail.
        """
        self.command, self.envs, self.logs, self.patience_s = (
            list(command),
            dict(envs or {}),
            logs,
            patience_s,
        )
        self.store, self._secret = hosted(), secrets.token_hex(32)
        self.generation = self.attempt = -1
        self._job = self.envs.get(Variable.JOB, os.environ.get(Variable.JOB, ""))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._names = 0

    def start(self, count: int) -> None:
        """Start ``count`` replicas from the last checkpoint, if there is one."""
        if self.running:
            raise LaunchError("replicas are already running; stop them first")
        self.generation = 0
        self.attempt += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._rendezvous = Rendezvous(self.store, self._job, self.attempt, secret=self._secret)
        for rank in range(count):
            self._start_one(rank, count, {})

    def resize(self, count: int, *, without: Collection[str] = ()) -> float:
        """Resize to ``count`` replicas in place; those named in ``without`` leave, then the last ones.

        Returns the seconds until newcomers were ready, during which the others trained.
        """
        began = time.monotonic()
        stay = [name for name in self.running if name not in without][:count]
        leaving = [name for name in self.running if name not in stay]
        self.generation += 1
        joining = [
            self._start_one(rank, count, {Variable.JOIN: str(self.generation)})
            for rank in range(len(stay), count)
        ]
        self._await([f"ready{self.generation}/{name}" for name in joining])
        ready_s = time.monotonic() - began
        self._rendezvous.notify(Notice(kind="resize", generation=self.generation, members=(*stay, *joining)))
        self._await([f"running{self.generation}"])
        for name in leaving:
            code = self.running.pop(name).wait(self.patience_s)
            if code != 143:
                raise LaunchError(f"a leaving replica exited with code {code} instead of 143")
        return ready_s

    def stop(self) -> list[int]:
        """Have all replicas save and exit; returns their exit codes."""
        return self._end(signal.SIGTERM)

    def kill(self) -> list[int]:
        """Kill all replicas; returns their exit codes."""
        return self._end(signal.SIGKILL)

    def wait(self) -> list[int]:
        """Wait for all replicas and return their exit codes; if one fails, the others are stopped."""
        codes: list[int] = []
        while self.running:
            codes += self.reap()
            if any(code not in (0, 143) for code in codes):
                codes += self._end(signal.SIGTERM)
            time.sleep(_POLL_S)
        return codes

    def reap(self) -> list[int]:
        """Exit codes of replicas that have ended since the last call."""
        ended = {n: c for n, p in self.running.items() if (c := p.poll()) is not None}
        for name in ended:
            del self.running[name]
        return list(ended.values())

    def _end(self, number: int) -> list[int]:
        for process in self.running.values():
            process.send_signal(number)
        codes = []
        for process in self.running.values():
            try:
                codes.append(process.wait(self.patience_s))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self.running.clear()
        return codes

    def _await(self, keys: list[str]) -> None:
        """Wait until replicas have set all keys; an error if one exits before."""
        until = time.monotonic() + self.patience_s
        while not self._rendezvous.there(keys):
            ended = [p.returncode for p in self.running.values() if p.poll() not in (None, 143)]
            if ended or time.monotonic() > until:
                why = f"a replica exited with code {ended[0]}" if ended else "replicas did not answer"
                raise LaunchError(f"the resize failed: {why}")
            time.sleep(_POLL_S)

    def _start_one(self, rank: int, count: int, special: dict[str, str]) -> str:
        name, self._names = f"m{self._names}", self._names + 1
        envs = {
            **os.environ,
            **self.envs,
            **special,
            Variable.STORE: f"127.0.0.1:{self.store.port}",
            Variable.STORE_SECRET: self._secret,
            Variable.MEMBER: name,
            Variable.ATTEMPT: str(self.attempt),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            # for scripts and trainers that make a process group of their own
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
        }
        if self.logs is not None:
            self.logs.mkdir(parents=True, exist_ok=True)
        self.running[name] = self._spawn(envs, self.logs / f"{name}.log" if self.logs is not None else None)
        return name

    def _spawn(self, envs: dict[str, str], log: Path | None) -> subprocess.Popen[bytes]:
        """Start one process with environment ``envs`` and output to ``log``."""
        with ExitStack() as files:
            out = files.enter_context(log.open("ab")).fileno() if log is not None else sys.stderr.fileno()
            return subprocess.Popen(
                self.command, env=envs, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )


def main() -> int:
    """Parse the arguments, start the replicas and execute commands from standard input."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.torch.launch")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--checkpoints", help="directory of checkpoints")
    parser.add_argument("--logs", type=Path, help="directory of the replicas' output")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.replicas < 1:
        parser.error("--replicas must be at least 1")
    envs = {Variable.CHECKPOINTS: str(Path(given.checkpoints).absolute())} if given.checkpoints else {}
    launcher = Launcher([sys.executable, given.script, *given.arguments], envs=envs, logs=given.logs)
    commands: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: commands.append("stop"))
    threading.Thread(target=lambda: commands.extend(sys.stdin), daemon=True).start()
    launcher.start(given.replicas)
    codes: list[int] = []
    while launcher.running:
        codes += launcher.reap()
        if any(code not in (0, 143) for code in codes):
            codes += launcher.stop()
        elif commands:
            codes += _execute(launcher, commands.pop(0).split())
        time.sleep(_POLL_S)
    return next(
        (code if code > 0 else 128 - code for code in codes if code not in (0, 143)), max(codes, default=0)
    )


def _execute(launcher: Launcher, words: list[str]) -> list[int]:
    began, codes = time.monotonic(), []
    try:
        match words:
            case ["resize", count] if count.isdigit() and int(count) > 0:
                launcher.resize(int(count))
            case ["restart", count] if count.isdigit() and int(count) > 0:
                launcher.stop()
                launcher.start(int(count))
            case ["stop"]:
                codes = launcher.stop()
            case ["kill"]:
                codes = launcher.kill()
            case _:
                raise LaunchError(
                    f"{' '.join(words)!r} is not a command; use resize N, restart N, stop or kill"
                )
        result = {"done": " ".join(words), "seconds": time.monotonic() - began}
    except LaunchError as error:
        result = {"failed": " ".join(words), "why": str(error)}
    print(json.dumps(result), flush=True)
    return codes


if __name__ == "__main__":
    sys.exit(main())
