"""A replica that writes down its own life, and has the kernel prove that it is alone. Imports the standard library only.

    python chaos_replica.py DIR GPUS SECONDS [EXIT] [stubborn|helper|daemon]

Each process has a file of its own in DIR/lives: start, beats, end, by the monotonic clock, which all processes of a machine
share. Locks die with their process, and with nothing else:

- one per replica; whoever starts finds a *twin* if another process has its own, because one and the same start was carried out
  twice, or if a replica of another life of its job (attempt, restart) still has one;
- one per GPU of each node; whoever finds none free on its node knows that a GPU was given away twice: *doubled*.

A ``daemon`` leaves a process behind that has forked twice, has a session of its own and no environment, does not listen to
SIGTERM, and holds the same locks and one of its own in DIR/daemons: as long as it lives its GPU is not free, and its job has a twin.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_BEAT_S = 0.05


class Life:
    """Of this process, from its beginning."""

    def __init__(self, directory: Path, gpus: int) -> None:
        began = time.monotonic()
        own = os.environ
        self.job, self.attempt = own["COADAPT_JOB"], int(own["COADAPT_ATTEMPT"])
        restart, member = int(own["TORCHELASTIC_RESTART_COUNT"]), own["COADAPT_MEMBER"]
        lives = directory / "lives"
        lives.mkdir(exist_ok=True)
        name = f"{self.job}.{self.attempt}.{restart}.{member}.{os.getpid()}"
        self._file = os.open(lives / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.note(
            "start",
            at=began,
            job=self.job,
            attempt=self.attempt,
            restart=restart,
            member=member,
            rank=int(own["RANK"]),
            size=int(own["WORLD_SIZE"]),
            node=own["NODE"],
            pid=os.getpid(),
            token=own["COADAPT_TOKEN"],
        )
        self._locks = [self._alone(directory / "locks" / self.job, f"{self.attempt}.{restart}.", member)]
        self._seat(directory / "seats", own["NODE"], gpus)

    def note(self, what: str, *, at: float | None = None, **more: object) -> None:
        """One line; whole or, if we are killed before, not there."""
        line = {"what": what, "at": time.monotonic() if at is None else at, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def leave_daemon(self, directory: Path) -> None:
        """Starts a process that nothing but its parents' deaths betrays."""
        directory.mkdir(exist_ok=True)
        own = os.open(directory / f"{self.job}.{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(own, fcntl.LOCK_EX)
        for lock in (own, *self._locks):
            os.set_inheritable(lock, True)
        self.note("daemon")
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"
                # its directory on the command line is for those who clean up after a failure; the keeper does not read it
                os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, str(directory)], {})
            os._exit(0)
        os.close(own)

    def _alone(self, directory: Path, life: str, member: str) -> int:
        directory.mkdir(parents=True, exist_ok=True)
        mine = os.open(directory / (life + member), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # another member that looks at our file has it for a moment only, and shared
            if not _shared(mine):
                self.note("twin", of=life + member)
            fcntl.flock(mine, fcntl.LOCK_EX)
        # first ours, then a look at others': of two, one sees the other
        for other in directory.iterdir():
            if not other.name.startswith(life) and _held(other):
                self.note("twin", of=other.name)
        return mine

    def _seat(self, directory: Path, node: str, gpus: int) -> None:
        directory.mkdir(exist_ok=True)
        for number in range(gpus):
            seat = os.open(directory / f"{node}.{number}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(seat)
                continue
            self._locks.append(seat)
            self.note("seat", gpu=number)
            return
        self.note("doubled")


def _held(path: Path) -> bool:
    other = os.open(path, os.O_RDWR)
    try:
        return not _shared(other)
    finally:
        os.close(other)


def _shared(file: int) -> bool:
    """Whether no process holds it exclusively; if so, this process shares it now."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> None:
    """Lives for a number of seconds."""
    directory, gpus, seconds, *more = sys.argv[1:]
    life = Life(Path(directory), int(gpus))
    code = int(more[0]) if more else 0
    if "stubborn" in more:
        signal.signal(signal.SIGTERM, lambda number, frame: life.note("told"))
    else:

        def told(number: int, frame: object) -> None:
            life.note("told")
            os._exit(143)

        signal.signal(signal.SIGTERM, told)
    if "daemon" in more:
        life.leave_daemon(Path(directory) / "daemons")
    if "helper" in more:
        # in a session of its own: only its inherited environment betrays whose it is
        helper = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        life.note("helper", pid=helper.pid)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        time.sleep(_BEAT_S)
        life.note("beat")
    life.note("end", code=code)
    os._exit(code)


if __name__ == "__main__":
    main()
