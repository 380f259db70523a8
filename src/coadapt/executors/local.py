"""The executor for processes on this machine: asks the keeper, and starts it where there is none.

Every request is answered after the keeper has written it to its journal. If the connection breaks, the request is
sent again to the same keeper or to its successor, which is harmless since actions are known by their
ids. Events stay with the keeper until they are acknowledged.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.node import keeper_shutdown
from coadapt.executors.node.devices import this_machine
from coadapt.executors.node.keeper_shutdown import Ended
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.protocol import (
    PROTOCOL,
    Acknowledge,
    Answer,
    Apply,
    AskInventory,
    Happened,
    Hello,
    Lines,
    Request,
    Shutdown,
    line,
    reply_decoder,
    socket_path,
)
from coadapt.model import Action, AnyEvent, Node, StartJob
from coadapt.model.resources import parse_cluster
from coadapt.runtime import Cursor, JobSource, LogSlice, Running, SavedCheckpoint, Stream
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

#: The keeper is the one source of events.
SOURCE = "keeper"
_LOOK_AGAIN_S = 0.01


class LocalExecutor:
    """Implements ``runtime.ports.Executor``.

    Args:
        directory: the keeper's.
        log: identity of the event log that the actions come from.
        jobs: asked what to run whenever a job starts.
        nodes: what a keeper that has to be started offers of this machine (``devices.this_machine()``).
        virtual: nodes without hardware of their own that it offers besides.
        home: holds frozen code, checkpoints and paces; without it jobs have neither.
        grace_s: what a replica gets from SIGTERM to SIGKILL.
        patience_s: a keeper that does not answer within this is an error.
        epoch: of the controller's lease: the keeper refuses those of its predecessors.
    """

    name = "local"
    help = "Processes on this machine."
    #: The command that starts a keeper.
    keeper: tuple[str, ...] = (sys.executable, "-m", "coadapt.executors.node.keeper")

    def __init__(
        self,
        directory: Path,
        *,
        log: str,
        jobs: JobSource,
        nodes: tuple[Node, ...] = (),
        virtual: tuple[Node, ...] = (),
        home: Path | None = None,
        grace_s: float = 30.0,
        patience_s: float = 30.0,
        epoch: int = 0,
    ) -> None:
        self.directory, self.log, self.jobs, self.epoch = directory, log, jobs, epoch
        self.nodes, self.virtual, self.home = nodes, virtual, home
        self.grace_s, self.patience_s = grace_s, patience_s
        self._files = NodeFiles(directory, home)
        self._events: deque[Happened] = deque()
        self._keeper_pid: int | None = None
        self._lines: Lines | None = None
        #: Largest number handed out: a new connection sends again what is not acknowledged.
        self._given = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connect()

    # -- by name (``ExecutorPlugin``) ----------------------------------------------------------------

    @classmethod
    def offered_nodes(cls, options: ServeOptions) -> tuple[Node, ...]:
        """Returns virtual nodes, or this machine's GPUs or cores; InputError if it has fewer than asked for."""
        real, virtual = _offer(options)
        return (*real, *virtual)

    @classmethod
    def connect(
        cls, home: Home, options: ServeOptions, *, jobs: JobSource, log: str, epoch: int = 0
    ) -> LocalExecutor:
        """Connects to the keeper of ``home``, and starts it if none runs.

        ``options``, ``jobs``, ``log`` and ``epoch`` as in ``ExecutorPlugin.connect``.
        """
        real, virtual = _offer(options)
        return cls(
            home.keeper,
            log=log,
            jobs=jobs,
            nodes=real,
            virtual=virtual,
            home=home.path,
            grace_s=options.grace_s,
            epoch=epoch,
        )

    @classmethod
    def job_files(cls, home: Home, options: ServeOptions) -> NodeFiles:
        """Returns the files of this machine, on which the API runs too."""
        return NodeFiles(home.keeper, home.path)

    @classmethod
    def running_jobs(cls, home: Home, options: ServeOptions) -> set[str]:
        """Returns the jobs that the keeper runs."""
        return keeper_shutdown.running_jobs(home.keeper)

    @classmethod
    def end(cls, home: Home, options: ServeOptions) -> Ended:
        """Ends the keeper and all it runs."""
        return keeper_shutdown.end_everything(home.keeper, options.grace_s)

    @classmethod
    def examine(
        cls, home: Home, options: ServeOptions, *, served: bool
    ) -> Iterator[tuple[str, Literal["ok", "warn", "bad"], str, str]]:
        """Returns the findings of ``keeper_shutdown.examine``."""
        return keeper_shutdown.examine(home.keeper, served=served)

    # -- the port ------------------------------------------------------------------------------------

    def apply(self, actions: Sequence[Action]) -> None:
        """Sends actions to the keeper."""
        if not actions:
            return
        starts = [action.job for action in actions if isinstance(action, StartJob)]
        launches = {job: self.jobs.launch(job) for job in starts}
        self._ask(Apply(actions=tuple(actions), launches=launches))

    def inventory(self) -> Sequence[Running]:
        """Asks the keeper what runs, and what ended without an acknowledgement."""
        held = self._ask(AskInventory()).held
        return [Running(job=h.job, attempt=h.attempt, placement=h.placement, ended=h.ended) for h in held]

    def take(self, timeout_s: float) -> list[tuple[Cursor, AnyEvent]]:
        """Returns new events of the keeper, waiting up to ``timeout_s`` for the first."""
        if not self._events and self._readable(timeout_s):
            self._receive()
        found = list(self._events)
        self._events.clear()
        if found:
            self._given = found[-1].number
        return [(Cursor(source=SOURCE, number=each.number), each.event) for each in found]

    def acknowledge(self, cursor: Cursor) -> None:
        """Acknowledges events to the keeper. If the connection is lost, the events come again, which is harmless."""
        if cursor.source != SOURCE:
            raise ValueError(f"there is no source {cursor.source!r}; the only one is {SOURCE!r}")
        if self._lines is not None:
            try:
                self._lines.connection.sendall(line(Acknowledge(number=cursor.number)))
            except OSError:
                self._disconnect()

    def read_log(
        self, job: str, attempt: int, rank: int, stream: Stream, offset: int, limit: int
    ) -> LogSlice | None:
        """Reads ``limit`` bytes at ``offset`` of ``stream`` of replica ``rank`` in ``attempt`` of ``job``; see
        ``JobFiles.read_log``.
        """
        return self._files.read_log(job, attempt, rank, stream, offset, limit)

    def checkpoints(self, job: str) -> Sequence[SavedCheckpoint]:
        """Returns the checkpoints of a job on this machine."""
        return self._files.checkpoints(job)

    def shutdown(self) -> None:
        """Stops all replicas and the keeper; returns when it is gone."""
        self._ask(Shutdown())
        assert self._lines is not None
        peer = self._lines.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * 4)
        try:
            keeper = os.pidfd_open(struct.unpack("3i", peer)[0])
        except ProcessLookupError:
            self.close()
            return
        with selectors.DefaultSelector() as selector:
            selector.register(keeper, selectors.EVENT_READ)
            gone = selector.select(self.grace_s + self.patience_s)
        os.close(keeper)
        self.close()
        if not gone:
            raise CoadaptError(f"the keeper in {self.directory} did not stop; see its keeper.log")

    def close(self) -> None:
        """Disconnects from the keeper, which continues to run its replicas."""
        self._disconnect()
        self._reap_keeper()

    # -- the connection ------------------------------------------------------------------------------

    def _ask(self, request: Request) -> Answer:
        # a keeper that is closing down does not answer, and takes up to its grace time to exit
        deadline = time.monotonic() + self.grace_s + self.patience_s
        while True:
            answer = self._try(request, deadline)
            if answer is not None:
                if answer.error:
                    raise InputError(answer.error)
                return answer
            self._connect()

    def _try(self, request: Request, deadline: float) -> Answer | None:
        """The answer, or None if the connection broke."""
        if self._lines is None:
            return None
        try:
            self._lines.connection.sendall(line(request))
        except OSError:
            return None
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise CoadaptError(f"the keeper in {self.directory} does not answer; see its keeper.log")
            if self._readable(left_s):
                lines = self._lines.receive()
                if lines is None:
                    return None
                answer = self._sort(lines)
                if answer is not None:
                    return answer

    def _receive(self) -> None:
        lines = self._lines.receive() if self._lines is not None else None
        if lines is None:
            self._connect()
        else:
            self._sort(lines)

    def _sort(self, lines: Sequence[bytes]) -> Answer | None:
        """Queues events; returns the answer among the lines (one request is in progress at a time)."""
        answer = None
        for data in lines:
            reply = reply_decoder.decode(data)
            if isinstance(reply, Answer):
                answer = reply
            elif reply.number > self._given and (not self._events or reply.number > self._events[-1].number):
                self._events.append(reply)
        return answer

    def _readable(self, timeout_s: float) -> bool:
        """Whether there is something to read, or no connection (which reading repairs)."""
        if self._lines is None:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._lines.connection, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def _connect(self) -> None:
        deadline = time.monotonic() + self.patience_s
        while not self._reach():
            if time.monotonic() > deadline:
                raise CoadaptError(f"no keeper in {self.directory}; see {self.directory / 'keeper.log'}")
            self._ensure_keeper()
            time.sleep(_LOOK_AGAIN_S)

    def _reach(self) -> bool:
        """Whether a keeper runs and has accepted ``Hello``."""
        self._disconnect()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_path(self.directory) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            return False
        self._lines = Lines(connection)
        answer = self._try(
            Hello(log=self.log, protocol=PROTOCOL, epoch=self.epoch), time.monotonic() + self.patience_s
        )
        if answer is not None and answer.error:
            self._disconnect()
            raise InputError(answer.error)
        return answer is not None

    def _disconnect(self) -> None:
        if self._lines is not None:
            self._lines.connection.close()
            self._lines = None

    def _ensure_keeper(self) -> None:
        """Starts a keeper unless one that we started is still starting; a second one exits by itself."""
        self._reap_keeper()
        if self._keeper_pid is not None:
            return
        command = [*self.keeper, str(self.directory)]
        command += ["--nodes", msgspec.json.encode(self.nodes).decode()]
        command += ["--virtual-nodes", msgspec.json.encode(self.virtual).decode()]
        command += ["--grace-s", str(self.grace_s)]
        if self.home is not None:
            command += ["--home", str(self.home)]
        output = os.open(self.directory / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # not subprocess: the keeper is meant to outlive this process and its session
            self._keeper_pid = os.posix_spawn(
                command[0],
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(output)

    def _reap_keeper(self) -> None:
        if self._keeper_pid is not None:
            pid, _ = os.waitpid(self._keeper_pid, os.WNOHANG)
            if pid:
                self._keeper_pid = None


def _offer(options: ServeOptions) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Nodes of this machine, and virtual ones."""
    if options.virtual:
        # "+" joins groups of nodes as "," does
        return (), parse_cluster(options.virtual.replace("+", ",")).nodes
    nodes = this_machine()
    if options.gpus == "auto":
        return nodes, ()
    there = sum(node.gpus for node in nodes)
    if not options.gpus.isdigit() or not 1 <= int(options.gpus) <= there:
        raise InputError(
            f"--gpus {options.gpus!r} must be auto or a number from 1 to {there}, the number on this machine"
        )
    left, offered = int(options.gpus), []
    for node in nodes:
        taken = min(node.gpus, left)
        left -= taken
        if taken:
            offered.append(msgspec.structs.replace(node, gpus=taken))
    return tuple(offered), ()
