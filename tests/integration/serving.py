"""``coadapt serve`` in tests: a home, the processes on it, and a script that notes its own life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coadapt.executors.node.keeper_shutdown import pid_in
from coadapt.executors.node.processes import started_ticks
from coadapt.model import Record
from coadapt.scheduler import SchedulerState
from coadapt.store import open_store
from coadapt.store.home import Home
from tests.waiting import DEADLINE_S, until

#: Notes its life in a file of its own, and a second copy of itself as an error; a long one waits until it is let end.
LIFE = """
import os, signal, sys, time
path, short = sys.argv[1], sys.argv[2] == "short"
lock = os.open(path + ".alive", os.O_CREAT | os.O_RDWR)
import fcntl
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(path + ".twice", "w").write("two at once")
signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))
open(path + ".lives", "a").write(str(os.getpid()) + "\\n")
while not short and not os.path.exists(path + ".end"):
    time.sleep(0.02)
open(path + ".done", "a").write("done\\n")
"""


class Served:
    """A home, the ``coadapt serve`` on it, and what a user would do with both."""

    def __init__(self, path: Path) -> None:
        self.path, self.home = path, Home(path / "home")
        self.process: subprocess.Popen[str] | None = None

    def coadapt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coadapt.cli.main", *arguments, "--home", str(self.home.path)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def serve(self, *arguments: str) -> None:
        options = arguments or (
            "--virtual",
            "2x2:t4",
            "--policy",
            "fifo",
            "--listen",
            "127.0.0.1:0",
            "--grace-period",
            "5",
        )
        command = [sys.executable, "-m", "coadapt.cli.main", "serve", "--home", str(self.home.path), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        process = self.process
        until(lambda: self.home.address.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        until(lambda: self.controller() is not None)

    def stop(self, number: int = signal.SIGINT) -> str:
        assert self.process is not None
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return output

    def log(self) -> list[Record]:
        log = open_store(self.home.store(self.home.read_options())).log()
        try:
            return list(log.read())
        finally:
            log.close()

    def state(self) -> SchedulerState:
        state = SchedulerState()
        for record in self.log():
            state.apply(record)
        state.validate()
        return state

    def controller(self) -> int | None:
        """Pid of the controller that has the lease and is alive."""
        log = open_store(self.home.store(self.home.read_options())).log()
        holder = log.holder()
        log.close()
        if holder is None:
            return None
        pid = int(holder.owner.split("/")[2])
        return pid if started_ticks(pid) is not None else None

    def keeper(self) -> int:
        pid = pid_in(self.home.keeper / "keeper.lock")
        assert pid is not None
        return pid

    def submit(self, name: str, *, short: bool = False) -> str:
        words = [str(self.path / name), "short" if short else "long"]
        spec = {"name": name, "command": [sys.executable, "-c", LIFE, *words]}
        answer = self.ask("POST", "/v1/jobs", {"spec": spec})
        return str(answer["job"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.home.address.read_text().strip() + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.home.token.read_text().strip()}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.loads(answer.read())

    def end(self, name: str) -> None:
        """Lets a long job end."""
        (self.path / f"{name}.end").touch()

    def lives(self, name: str) -> list[int]:
        file = self.path / f"{name}.lives"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def done(self, *names: str) -> bool:
        return all((self.path / f"{name}.done").exists() for name in names)

    def left(self) -> set[str]:
        """Command lines that still name the directory."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if str(self.path) in line and started_ticks(int(entry.name)) is not None:
                    found.add(line)
        return found


@contextmanager
def serving(tmp_path: Path) -> Iterator[Served]:
    """Whatever the test did, nothing of it survives, and no job ever ran beside its twin."""
    served = Served(tmp_path)
    yield served
    result = served.coadapt("down")
    if served.process is not None:
        served.process.kill()
        served.process.communicate()
    assert result.returncode == 0, result.stderr
    assert served.left() == set()
    assert list(tmp_path.glob("*.twice")) == []
