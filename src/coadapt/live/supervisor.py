"""The supervisor: keeps the controller and the API alive. A file lock allows one supervisor per home directory.

Its children end with it; the keeper, which owns the jobs, does not. A child that ends is restarted, after pauses that
grow. A child that exits with 2 in its first run is misconfigured and not restarted: the supervisor ends, too, with the
last line that the child wrote.

A child with a progress file that makes no progress for ``liveness_s`` hangs: it is killed and restarted. What it hung
on is written to ``HOME/children.json``, where the next controller reads it (``live.hang_culprit``).
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.executors.node import processes
from coadapt.executors.node.keeper_shutdown import pid_in
from coadapt.executors.node.processes import this_process
from coadapt.live.child_lives import Lives, next_hang, read_lives, write_lives
from coadapt.live.controller_progress import Reached, read_progress


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Holds the lock and writes our pid into the file; raises an InputError with the holder's pid if it is taken."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = pid_in(path)
            raise InputError(refusal.format(pid="?" if pid is None else pid)) from None
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()} {this_process()}\n".encode())
        yield
    finally:
        os.close(fd)


#: After a run of this length the next pause is short again.
GOOD_LIFE_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
_LOOK_S = 0.1
#: Seconds between two looks after which this process was stopped itself, and its children perhaps with it.
_STALLED_S = 5.0
#: Seconds from the start to the first run of a chore.
_FIRST_CHORE_S = 60.0
#: Seconds that children have to end after SIGTERM.
_END_S = 20.0
_WRONG_INPUT = 2
#: Log files larger than this are rotated at a start.
_MOST_LOG = 32 << 20
_STAMP = re.compile(r"^[\d-]+ [\d:,]+ [A-Z]+ \S+: ")


@dataclass(slots=True)
class Child:
    """One process that is restarted whenever it ends."""

    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    pause_s: float = _FIRST_PAUSE_S
    #: Monotonic times of the last and of the next start.
    born: float = 0.0
    due: float = 0.0
    #: Where it counts its progress; None: it does not.
    progress: Path | None = None
    #: What it last reached, and when (monotonic) that was seen first.
    reached: Reached | None = None
    reached_at: float = 0.0
    #: It has made progress for a good while: what the one before hung on is overcome.
    proven: bool = False
    #: The supervisor killed it because it hung.
    killed: bool = False

    def start(self) -> None:
        """Starts the process."""
        self.process = started(self.command, self.log)
        self.lives, self.born = self.lives + 1, time.monotonic()
        self.reached, self.reached_at, self.proven, self.killed = None, self.born, False, False

    def silent_s(self, now: float) -> float:
        """Returns the seconds since its last progress or its start."""
        if self.progress is None:
            return 0.0
        reached = read_progress(self.progress)
        if reached != self.reached:
            self.reached, self.reached_at = reached, now
        return now - self.reached_at

    def last_line(self) -> str:
        """Returns the last line of its log, without time and level."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self.log.stat().st_size - 4096, 0))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return _STAMP.sub("", last)


@dataclass(slots=True)
class Chore:
    """A process that is started now and then, and ends by itself; one at a time."""

    command: Sequence[str]
    log: Path
    every_s: float
    #: It is started only while this exists; None: always.
    needs: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    #: Monotonic time of the next start; None: not planned yet.
    due: float | None = None

    def mind(self, now: float) -> None:
        """Starts it when it is due, the first time after a while, so that a start of the cluster is not slowed down."""
        if self.process is not None and self.process.poll() is not None:
            self.process = None
        if self.due is None:
            self.due = now + min(self.every_s, _FIRST_CHORE_S)
        if self.process is None and now >= self.due:
            self.due = now + self.every_s
            if self.needs is not None and not self.needs.exists():
                return
            self.process = started(self.command, self.log)

    def end(self) -> None:
        """Kills it: it may end at any instant."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def started(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a process in its own session, so that Ctrl-C in the terminal reaches the supervisor only."""
    if log.exists() and log.stat().st_size > _MOST_LOG:
        log.replace(log.with_suffix(".log.1"))
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=processes.dies_with(os.getpid()),
        )


@dataclass(slots=True)
class Supervisor:
    """Starts and restarts the children; ``say`` is called with a message whenever a child ends."""

    children: Sequence[Child]
    say: Callable[[str], None]
    #: A child without progress for so long is killed.
    liveness_s: float = 60.0
    #: Where lives are recorded; None: nowhere.
    lives_file: Path | None = None
    chores: Sequence[Chore] = ()
    _stopped: bool = field(default=False)
    _looked: float = field(default=0.0)

    def stop(self) -> None:
        """Ends the supervisor. May be called from a signal handler."""
        self._stopped = True

    def run(self, on_look: Callable[[], None] = lambda: None) -> None:
        """Runs until ``stop`` is called; calls ``on_look`` repeatedly."""
        try:
            while not self._stopped:
                self._forgive()
                for child in self.children:
                    self._mind(child)
                for chore in self.chores:
                    chore.mind(time.monotonic())
                on_look()  # it may add children
                time.sleep(_LOOK_S)
        finally:
            self._end()

    def _forgive(self) -> None:
        """Where this process itself stood still, its children may have stood still with it."""
        now = time.monotonic()
        if self._looked and now - self._looked > _STALLED_S:
            for child in self.children:
                child.reached_at = now
        self._looked = now

    def _mind(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.due:
                child.start()
                self._record(child, lambda lives: replace(lives, starts=lives.starts + 1))
            return
        code = child.process.poll()
        if code is None:
            if child.silent_s(now) > self.liveness_s:
                self._kill(child, now)
            elif not child.proven and child.reached_at - child.born >= GOOD_LIFE_S:
                child.proven = True
                self._record(child, lambda lives: replace(lives, hang=None, quick_ends=0))
            return
        child.process = None
        if code == _WRONG_INPUT and child.lives == 1:
            raise InputError(child.last_line() or f"the {child.name} could not start; see {child.log}")
        if now - child.born >= GOOD_LIFE_S:
            child.pause_s = _FIRST_PAUSE_S
        child.due = now + child.pause_s
        how = (
            f"was killed by signal {-code}"
            if code < 0
            else f"ended with exit code {code}: {child.last_line()}"
        )
        quick = now - child.born < GOOD_LIFE_S
        reached = (
            read_progress(child.progress)
            if child.progress is not None and code and not child.killed
            else None
        )

        def ended(lives: Lives) -> Lives:
            # only a decision is tried again before anything is concluded; a controller may be killed at any record
            if reached is not None and reached.stage == "decision":
                lives = replace(lives, hang=next_hang(lives.hang, reached, good=not quick, at=time.time()))
            quick_ends = lives.quick_ends + 1 if quick else 1
            return replace(lives, ended=how, ended_at=time.time(), quick_ends=quick_ends)

        self._record(child, ended)
        self.say(
            f"the {child.name} {how}; it is restarted in {child.pause_s:g} s, jobs are not affected (see {child.log})"
        )
        child.pause_s = min(2 * child.pause_s, _LONGEST_PAUSE_S)

    def _kill(self, child: Child, now: float) -> None:
        """Kills a child that hangs; the next look finds it dead and starts another."""
        assert child.process is not None
        good, reached = child.reached_at - child.born >= GOOD_LIFE_S, child.reached

        def hung(lives: Lives) -> Lives:
            hang = next_hang(lives.hang, reached, good=good, at=time.time())
            return replace(lives, hangs=lives.hangs + 1, hang=hang)

        self._record(child, hung)
        self.say(
            f"the {child.name} has made no progress for {now - child.reached_at:.0f} s and is killed; "
            f"jobs are not affected ({child.log})"
        )
        child.killed = True
        child.process.kill()
        child.process.wait()

    def _record(self, child: Child, change: Callable[[Lives], Lives]) -> None:
        if self.lives_file is not None:
            lives = read_lives(self.lives_file)
            lives[child.name] = change(lives.get(child.name, Lives()))
            write_lives(self.lives_file, lives)

    def _end(self) -> None:
        """Ends the children in their order, the controller last, so that accepted requests are in its inbox."""
        for chore in self.chores:
            chore.end()
        alive = [child.process for child in self.children if child.process is not None]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for process in alive:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
