"""The executor for processes on this machine: asks the keeper, and starts it where there is none.

Every request is answered after the keeper has written it down. If the connection breaks, the request is
sent again to the same keeper or to its successor, which is harmless since actions are known by their
ids; so no doubt is left behind. Events stay with the keeper until they are acknowledged.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coadapt.cluster.launches import Agent, launch_of, nobody
from coadapt.cluster.protocol import (
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
from coadapt.errors import CoadaptError, InputError
from coadapt.model import Action, AnyEvent, JobSpec, Node, StartJob
from coadapt.runtime import Running

_LOOK_AGAIN_S = 0.01


class LocalExecutor:
    """Implements ``runtime.Executor``; its events are taken by ``LocalFeed``.

    ``log`` names the event log the actions come from, ``spec_of`` gives a job's specification, ``nodes`` is what a keeper
    that has to be started offers (``devices.this_machine()``, or those of a virtual cluster). ``home`` holds frozen code,
    checkpoints and paces; ``agent_of`` says where a job's agent reports to. A keeper that does not answer within
    ``patience_s`` is an error.
    """

    #: What a keeper is started by.
    keeper: tuple[str, ...] = (sys.executable, "-m", "coadapt.cluster.keeper")

    def __init__(
        self,
        directory: Path,
        *,
        log: str,
        spec_of: Callable[[str], JobSpec],
        nodes: tuple[Node, ...],
        home: Path | None = None,
        agent_of: Callable[[str], Agent] = nobody,
        grace_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        self.directory, self.log, self.spec_of = directory, log, spec_of
        self.nodes, self.home, self.agent_of = nodes, home, agent_of
        self.grace_s, self.patience_s = grace_s, patience_s
        self._events: deque[Happened] = deque()
        self._keeper_pid: int | None = None
        self._lines: Lines | None = None
        #: Largest number handed out: a new connection sends again what is not acknowledged.
        self._given = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connect()

    def apply(self, actions: Sequence[Action]) -> None:
        """See ``Executor``."""
        if not actions:
            return
        launches = {}
        for action in actions:
            if isinstance(action, StartJob):
                spec = self.spec_of(action.job)
                launches[action.job] = launch_of(action.job, spec, home=self.home, agent_of=self.agent_of)
        self._ask(Apply(actions=tuple(actions), launches=launches))

    def inventory(self) -> Sequence[Running]:
        """See ``Executor``."""
        held = self._ask(AskInventory()).held
        return [Running(job=h.job, attempt=h.attempt, placement=h.placement, ended=h.ended) for h in held]

    def take(self, timeout_s: float) -> list[tuple[int, AnyEvent]]:
        """Events with their numbers, waiting up to ``timeout_s`` for the first; then all that are there."""
        if not self._events and self._readable(timeout_s):
            self._receive()
        found = [(happened.number, happened.event) for happened in self._events]
        self._events.clear()
        if found:
            self._given = found[-1][0]
        return found

    def acknowledge(self, number: int) -> None:
        """All events up to ``number`` are in the log. Lost with the connection, they come again: harmless."""
        if self._lines is not None:
            try:
                self._lines.connection.sendall(line(Acknowledge(number=number)))
            except OSError:
                self._disconnect()

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
            raise CoadaptError(f"the keeper in {self.directory} does not end; see its keeper.log")

    def close(self) -> None:
        """Leaves the keeper and its replicas alone."""
        self._disconnect()
        self._reap_keeper()

    # -- the connection ------------------------------------------------------------------------------

    def _ask(self, request: Request) -> Answer:
        # a keeper that is closing down answers no more, and takes up to its grace to end
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
        """Puts events aside; returns the answer among the lines (one request is under way at a time)."""
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
        """Whether a keeper is there and has said hello."""
        self._disconnect()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_path(self.directory) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            return False
        self._lines = Lines(connection)
        answer = self._try(Hello(log=self.log), time.monotonic() + self.patience_s)
        if answer is not None and answer.error:
            self._disconnect()
            raise InputError(answer.error)
        return answer is not None

    def _disconnect(self) -> None:
        if self._lines is not None:
            self._lines.connection.close()
            self._lines = None

    def _ensure_keeper(self) -> None:
        """Starts a keeper unless one we started is still on its way; a second one ends by itself."""
        self._reap_keeper()
        if self._keeper_pid is not None:
            return
        command = [*self.keeper, str(self.directory)]
        command += ["--nodes", msgspec.json.encode(self.nodes).decode(), "--grace-s", str(self.grace_s)]
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
