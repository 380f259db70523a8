"""The keeper: owns the replicas on this machine and outlives the controller.

    python -m coadapt.executors.node.keeper DIR [--virtual 4x4:t4]

It offers the GPUs of this machine, else its CPU cores, or virtual GPUs.

One thread, one ``select``: requests from the controller, deaths of children, deadlines of stops. What it
promises is in its journal before it answers. If it dies its replicas die with it; the next keeper
kills what is left, reports those attempts as lost, and continues.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import selectors
import signal
import socket
import sqlite3
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

import msgspec

from coadapt.errors import InputError
from coadapt.executors.node import processes
from coadapt.executors.node.control_groups import ControlGroups, kill_all, make_base, note_base
from coadapt.executors.node.devices import this_machine
from coadapt.executors.node.gang_host import GangHost
from coadapt.executors.node.orphans import guarded
from coadapt.executors.node.protocol import (
    PROTOCOL,
    SOCKET,
    Acknowledge,
    Answer,
    Apply,
    Happened,
    Held,
    Hello,
    Lines,
    Request,
    Shutdown,
    line,
    request_decoder,
    socket_path,
)
from coadapt.model import Node
from coadapt.model.resources import parse_cluster

log = logging.getLogger(__name__)

#: Environment variable; "none": make no control groups.
GROUPS = "COADAPT_CONTROL_GROUPS"
#: Seconds until the journal is tried again after it could not be written.
_TRY_AGAIN_S = 0.5


class Caller:
    """A connected process; the controller, once it has sent ``Hello``. Reading and writing never block."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.lines = Lines(connection)
        self.unsent = b""
        self.greeted = False
        #: Number of the last event sent to it.
        self.sent = 0

    def flush(self) -> None:
        """Sends as much as the socket takes."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.lines.connection.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = b""  # disconnected; the next read notices it


class Host(Protocol):
    """Hosts gangs: what the process that listens for the controller asks of it."""

    directory: Path
    closing: bool
    #: Whether no controller listens.
    unattended: bool

    @property
    def journal(self) -> HostJournal: ...

    @property
    def empty(self) -> bool: ...

    def apply(self, request: Apply) -> None: ...

    def close_down(self) -> None: ...

    def reap(self) -> None: ...

    def turn(self) -> None: ...

    def patience_s(self) -> float | None: ...

    def close(self) -> None: ...


class HostJournal(Protocol):
    """The part of a host's journal that the controller's requests are about."""

    def bind(self, log: str) -> str: ...

    def reach_epoch(self, epoch: int) -> int: ...

    def acknowledge(self, number: int) -> None: ...

    def held(self) -> Sequence[Held]: ...

    def unheard(self, after: int) -> Sequence[Happened]: ...


class Keeper:
    """Joins the host of gangs with the controller's socket and the children's signals."""

    #: How the process is called in messages, and what its journal raises when it cannot be written.
    title = "keeper"
    trouble: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, host: Host) -> None:
        self.host = host
        self.callers: dict[socket.socket, Caller] = {}
        self._told_to_end = self._trouble = False
        self.selector = selectors.DefaultSelector()
        self._alarm, alarm = socket.socketpair()
        for end in (self._alarm, alarm):
            end.setblocking(False)
        self._alarm_writer = alarm
        signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._terminated)
        self._listener = _listen(host.directory)
        self.selector.register(self._listener, selectors.EVENT_READ)
        self.selector.register(self._alarm, selectors.EVENT_READ)

    def run(self) -> None:
        """Runs until the keeper is asked to end and no attempt is left."""
        host = self.host
        while not self.over():
            ready = self.selector.select(_TRY_AGAIN_S if self._trouble else self.patience_s())
            if self._told_to_end:
                host.close_down()
            for key, _ in ready:
                if key.fileobj is self._alarm:
                    self._alarm.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self.callers:
                    self._hear(self.callers[key.fileobj])
            host.unattended = not any(caller.greeted for caller in self.callers.values())
            try:
                host.reap()
                host.turn()
                self._tell()
                self._trouble = False
            except self.trouble:
                # a full disk must not end the keeper: its replicas would die with it
                log.exception("cannot write the journal; trying again")
                self._trouble = True
        (host.directory / SOCKET).unlink(missing_ok=True)
        host.close()

    def over(self) -> bool:
        """Whether the process should end."""
        return self.host.closing and self.host.empty

    def patience_s(self) -> float | None:
        """Returns the seconds until something is due even if nothing happens."""
        return self.host.patience_s()

    def _terminated(self, number: int, frame: object) -> None:
        self._told_to_end = True  # handled between two turns, not in the middle of one

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self.callers[connection] = Caller(connection)
        self.selector.register(connection, selectors.EVENT_READ)

    def _hear(self, caller: Caller) -> bool:
        """Carries out the requests that have arrived; False if there are no more for now."""
        lines = caller.lines.receive()
        if lines is None:
            self._drop(caller)
            return False
        for data in lines:
            try:
                reply = self._reply(data, caller)
            except msgspec.MsgspecError as error:
                reply = line(Answer(error=f"request not understood: {error}"))
            except self.trouble as error:
                reply = line(Answer(error=f"the {self.title} in {self.host.directory} cannot write: {error}"))
            if reply is not None:
                caller.unsent += reply
        # before the turn that carries it out: what was asked is in the journal, and the controller must not wait
        caller.flush()
        return bool(lines)

    def _reply(self, data: bytes, caller: Caller) -> bytes | None:
        """Carries out the request in a line; returns the answer's line, None: it is not answered now."""
        answer = self._answer(request_decoder.decode(data), caller)
        return None if answer is None else line(answer)

    def _answer(self, request: Request, caller: Caller) -> Answer | None:
        """Carries out one request; None: it is not answered."""
        if isinstance(request, Hello):
            if request.protocol != PROTOCOL:
                return Answer(
                    error=f"the {self.title} in {self.host.directory} is from another version of coadapt; end it with 'coadapt down'"
                )
            bound = self.host.journal.bind(request.log)
            if bound != request.log:
                return Answer(
                    error=f"the {self.title} in {self.host.directory} belongs to another event log ({bound}); use its log, or another directory"
                )
            if (largest := self.host.journal.reach_epoch(request.epoch)) > request.epoch:
                return Answer(
                    error=f"this controller (epoch {request.epoch}) was replaced by another one (epoch {largest})"
                )
            self._replace_controller(caller)
            return Answer()
        if not caller.greeted:
            return Answer(error="the first request must be Hello")
        if isinstance(request, Acknowledge):
            self.host.journal.acknowledge(request.number)
            return None
        if isinstance(request, Shutdown):
            self.host.close_down()
            return Answer()
        if self.host.closing:
            return None  # the connection will break, and the request go to the next keeper
        if isinstance(request, Apply):
            self.host.apply(request)
            return Answer()
        return Answer(held=tuple(self.host.journal.held()))

    def _replace_controller(self, caller: Caller) -> None:
        """The newest controller wins. The last requests of its predecessor still count, above all acknowledgements."""
        for older in [c for c in self.callers.values() if c.greeted and c is not caller]:
            while self._hear(older):
                pass
            self._drop(older)
        caller.greeted = True

    def _tell(self) -> None:
        for caller in self.callers.values():
            if caller.greeted:
                for happened in self.host.journal.unheard(caller.sent):
                    caller.unsent += line(happened)
                    caller.sent = happened.number
            caller.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
            self.selector.modify(caller.lines.connection, events)

    def _drop(self, caller: Caller) -> None:
        connection = caller.lines.connection
        if self.callers.pop(connection, None) is not None:
            self.selector.unregister(connection)
            connection.close()


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


def main(arguments: list[str] | None = None) -> int:
    """Runs the keeper process. A second keeper for the same directory exits at once."""
    parser = argparse.ArgumentParser(
        prog="python -m coadapt.executors.node.keeper", description="Owns local replicas."
    )
    parser.add_argument("directory", type=Path)
    offer = parser.add_mutually_exclusive_group()
    offer.add_argument("--virtual", metavar="CLUSTER", help="virtual GPUs, for example 4x4:t4")
    offer.add_argument("--nodes", metavar="JSON", help="nodes of this machine, as the executor knows them")
    parser.add_argument("--virtual-nodes", metavar="JSON", default="[]", help="nodes without hardware")
    parser.add_argument("--home", type=Path, help="holds frozen code, checkpoints and paces")
    parser.add_argument("--grace-s", type=float, default=30.0)
    groups = os.environ.get(GROUPS, "auto")
    parser.add_argument("--groups", choices=("auto", "none"), default=groups, help="control groups")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_file = os.open(options.directory / "keeper.lock", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(lock_file, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another keeper owns %s", options.directory)
            return 0
        if (made := _groups(options)) is None:
            return guarded(partial(_keep, options, lock, None))
        return _keep(options, lock, made)


def _groups(options: argparse.Namespace) -> ControlGroups | None:
    """The control groups of this keeper; None where the machine allows none."""
    base = make_base(options.directory) if options.groups == "auto" else None
    if base is None:
        log.info("no control groups: processes that leave their job are found as orphans")
        return None
    note_base(options.directory, base)
    groups = ControlGroups(base)
    log.info("%s at %s", groups.description, base.path)
    return groups


def _keep(options: argparse.Namespace, lock: TextIO, groups: ControlGroups | None) -> int:
    """Runs the keeper, which holds ``lock``."""
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    processes.adopt_orphans()
    try:
        real, virtual = _nodes(options)
        host = GangHost(
            options.directory,
            nodes=real,
            virtual=virtual,
            home=options.home,
            grace_s=options.grace_s,
            groups=groups,
            reaper=True,
        )
    except InputError as error:
        log.error("%s", error)
        return 2
    Keeper(host).run()
    if groups is not None:
        kill_all(options.directory)
    return 0


def _nodes(options: argparse.Namespace) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Nodes of this machine, and virtual ones."""
    if options.virtual is not None:
        return (), parse_cluster(options.virtual).nodes
    virtual = _decoded("--virtual-nodes", options.virtual_nodes)
    real = this_machine() if options.nodes is None else _decoded("--nodes", options.nodes)
    return real, virtual


def _decoded(option: str, text: str) -> tuple[Node, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[Node, ...])
    except msgspec.DecodeError as error:
        raise InputError(f"{option}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
