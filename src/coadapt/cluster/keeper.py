"""The keeper: owns the replicas on this machine and outlives the controller.

    python -m coadapt.cluster.keeper DIR --slots N

One thread, one ``select``: requests from the controller, deaths of children, deadlines of stops. What it
promised stands in its journal before it answers. If it dies its replicas die with it; the next keeper
kills what is left, reports those attempts as lost, and goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
import uuid
from pathlib import Path
from urllib.parse import quote

import msgspec

from coadapt.cluster import processes
from coadapt.cluster.attempt import Attempt
from coadapt.cluster.journal import Journal
from coadapt.cluster.protocol import (
    SOCKET,
    Acknowledge,
    Answer,
    Apply,
    Hello,
    Lines,
    Request,
    Shutdown,
    line,
    request_decoder,
    socket_path,
)
from coadapt.model import Action, JobStopped, Node, NodeJoined, ReplicasReleased, ResizeJob, StartJob
from coadapt.model.events import StopCause

log = logging.getLogger(__name__)

NODE = "local"
#: How often remaining helpers of a replica are looked for, once it is gone.
_LOOK_AGAIN_S = 0.05
_CAUSES: dict[str, StopCause] = {
    "pause": "paused",
    "cancel": "cancelled",
    "drain": "drained",
    "node-lost": "node-lost",
}


class Caller:
    """The connected controller: lines in, bytes out, never waited for."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.lines = Lines(connection)
        self.unsent = b""
        self.greeted = False
        #: Number of the last event sent to it.
        self.sent = 0

    def flush(self) -> None:
        """Sends what the socket takes."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.lines.connection.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = b""  # it is gone; reading will tell


class Keeper:
    """The attempts on this machine, and what the controller hears of them."""

    def __init__(self, directory: Path, *, slots: int, grace_s: float) -> None:
        self.directory, self.grace_s = directory, grace_s
        self.journal = Journal(directory / "keeper.db")
        self.attempts: dict[tuple[str, int], Attempt] = {}
        #: Attempts that may not start before an older one of their job is gone.
        self.waiting: dict[tuple[str, int], Attempt] = {}
        self.closing = False
        self._bury_predecessor()
        self.journal.joined(NodeJoined(node=Node(name=NODE, gpus=slots, gpu_type="cpu")))

    # -- requests ----------------------------------------------------------------------------------

    def answer(self, request: Request, caller: Caller) -> Answer | None:
        """Carries out one request; None: it is not answered."""
        if isinstance(request, Hello):
            bound = self.journal.bind(request.log)
            if bound != request.log:
                return Answer(
                    error=f"the keeper in {self.directory} belongs to another event log ({bound}); use its log, or another directory"
                )
            caller.greeted = True
            return Answer()
        if not caller.greeted:
            return Answer(error="the first request must be Hello")
        if isinstance(request, Acknowledge):
            self.journal.acknowledge(request.number)
            return None
        if isinstance(request, Apply):
            self.apply(request)
            return Answer()
        if isinstance(request, Shutdown):
            self.close_down()
            return Answer()
        return Answer(held=tuple(self.journal.held()))

    def apply(self, request: Apply) -> None:
        """Writes the actions down, then does them."""
        token = uuid.uuid4().hex
        for action in self.journal.accept(request.actions, token):
            self._carry_out(action, request, token)
        self.turn()

    def close_down(self) -> None:
        """Stops everything; the keeper ends when nothing is left."""
        self.closing = True
        for attempt in (*self.attempts.values(), *self.waiting.values()):
            attempt.stop("preempted", time.monotonic())

    def _carry_out(self, action: Action, request: Apply, token: str) -> None:
        now, key = time.monotonic(), (action.job, action.attempt)
        if isinstance(action, StartJob):
            for (job, _), older in self.attempts.items():
                if job == action.job:
                    older.stop("lost", now)
            # one token per attempt: an Apply may start several
            attempt_token = f"{token}-{action.id}"
            launch = request.launches[action.job]
            logs = self.directory / "logs" / _file_name(action.job, action.attempt)
            self.waiting[key] = Attempt(action, launch, attempt_token, logs=logs, grace_s=self.grace_s)
            return
        attempt = self.attempts.get(key) or self.waiting.get(key)
        if attempt is None:
            return  # it has ended
        if isinstance(action, ResizeJob):
            attempt.resize(action.placement, now)
        else:
            attempt.stop(_CAUSES[action.why], now)

    # -- what happens ------------------------------------------------------------------------------

    def reap(self) -> None:
        """Takes note of every child that exited, orphans of replicas included."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            now = time.monotonic()
            if not any(attempt.exited(found.si_pid, now) for attempt in self.attempts.values()):
                os.waitpid(found.si_pid, 0)

    def turn(self) -> None:
        """Ends attempts whose last process is gone, and starts those that waited for it."""
        now = time.monotonic()
        for key, attempt in list(self.attempts.items()):
            if attempt.empty(now):
                self._conclude(key, attempt)
        for key, attempt in list(self.waiting.items()):
            if any(job == key[0] for job, _ in self.attempts):
                continue
            del self.waiting[key]
            self.attempts[key] = attempt
            if attempt.stopped:
                self._conclude(key, attempt)
            else:
                self._start(key, attempt, resized=False)

    def _start(self, key: tuple[str, int], attempt: Attempt, *, resized: bool) -> None:
        if attempt.start(time.monotonic()):
            self.journal.started(attempt.leaders, attempt.ready(resized))
        elif not attempt.running:
            self._conclude(key, attempt)

    def _conclude(self, key: tuple[str, int], attempt: Attempt) -> None:
        event = attempt.conclude()
        if isinstance(event, ReplicasReleased):
            self.journal.released(event)
            self._start(key, attempt, resized=True)
        else:
            self.journal.ended(event)
            del self.attempts[key]

    def patience_s(self) -> float | None:
        """How long nothing can happen by itself; None: not before a child or the controller moves."""
        now = time.monotonic()
        times = [a.kill_at - now for a in self.attempts.values() if a.kill_at is not None and a.running]
        if any(not attempt.running for attempt in self.attempts.values()):
            times.append(_LOOK_AGAIN_S)
        return max(min(times), 0.0) if times else None

    def _bury_predecessor(self) -> None:
        """Kills what a dead keeper left, and says that its attempts are lost."""
        for attempt in self.journal.unfinished():
            while left := processes.remaining(attempt.token, attempt.leaders):
                processes.signal_each(left, signal.SIGKILL)
                time.sleep(0.005)
            self.journal.ended(JobStopped(job=attempt.job, attempt=attempt.attempt, cause="lost"))


class Server:
    """Joins the keeper with its socket and its children."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.caller: Caller | None = None
        self.selector = selectors.DefaultSelector()
        self._alarm, alarm = socket.socketpair()
        for end in (self._alarm, alarm):
            end.setblocking(False)
        self._alarm_writer = alarm
        signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: keeper.close_down())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._listener = _listen(keeper.directory)
        self.selector.register(self._listener, selectors.EVENT_READ)
        self.selector.register(self._alarm, selectors.EVENT_READ)

    def run(self) -> None:
        """Until told to close down and nothing is left."""
        keeper = self.keeper
        while not (keeper.closing and not keeper.attempts and not keeper.waiting):
            for key, _ in self.selector.select(keeper.patience_s()):
                if key.fileobj is self._alarm:
                    self._alarm.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif self.caller is not None and key.fileobj is self.caller.lines.connection:
                    self._hear(self.caller)
            keeper.reap()
            keeper.turn()
            self._tell()
        (keeper.directory / SOCKET).unlink(missing_ok=True)
        keeper.journal.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._drop()  # the newest controller wins; what an older one has not been answered is void
        self.caller = Caller(connection)
        self.selector.register(connection, selectors.EVENT_READ)

    def _hear(self, caller: Caller) -> None:
        lines = caller.lines.receive()
        if lines is None:
            self._drop()
            return
        for data in lines:
            try:
                reply = self.keeper.answer(request_decoder.decode(data), caller)
            except (msgspec.MsgspecError, KeyError) as error:
                reply = Answer(error=f"request not understood: {error}")
            if reply is not None:
                caller.unsent += line(reply)

    def _tell(self) -> None:
        caller = self.caller
        if caller is None:
            return
        if caller.greeted:
            for happened in self.keeper.journal.unheard(caller.sent):
                caller.unsent += line(happened)
                caller.sent = happened.number
        caller.flush()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
        self.selector.modify(caller.lines.connection, events)

    def _drop(self) -> None:
        if self.caller is not None:
            self.selector.unregister(self.caller.lines.connection)
            self.caller.lines.connection.close()
            self.caller = None


def _listen(directory: Path) -> socket.socket:
    (directory / SOCKET).unlink(missing_ok=True)  # a dead keeper's: we hold the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with socket_path(directory) as path:
            listener.bind(path)
    finally:
        os.umask(before)
    listener.listen()
    return listener


def _file_name(job: str, attempt: int) -> str:
    """A name for a job's files, whatever characters the job's name has."""
    name = quote(job, safe="")
    if len(name) > 150:
        name = f"{name[:150]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
    return f"{name}.{attempt}"


def main(arguments: list[str] | None = None) -> int:
    """The process. A second keeper for the same directory ends at once."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.cluster.keeper", description="Owns local replicas.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--grace-s", type=float, default=30.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (options.directory / "keeper.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another keeper owns %s", options.directory)
            return 0
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        processes.adopt_orphans()
        Server(Keeper(options.directory, slots=options.slots, grace_s=options.grace_s)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
