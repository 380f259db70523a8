"""What the local executor and the keeper say to each other: one JSON object per line.

The executor asks, the keeper answers each request in order. Events come in between, unasked, as
``Happened``: every one that is not acknowledged is sent again to whoever connects next.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coadapt.model import Action, AnyEvent, Placement

SOCKET = "keeper.sock"


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job's replicas run, and what they are told. ``launches.launch_of`` makes it of a specification."""

    command: tuple[str, ...]
    envs: dict[str, str] = {}
    #: Where the command runs; empty: where the keeper does.
    workdir: str = ""
    #: Runs once before the first replica of an attempt.
    setup: tuple[str, ...] = ()
    setup_limit_s: float = 3600.0
    #: GPUs of one replica, by role; 1 where nothing is said.
    gpus: dict[str, int] = {}
    #: Where the job's checkpoints are; empty: it has no place for them.
    checkpoints: str = ""
    #: The job's limits of the batch size as JSON, and whether it may be adapted.
    batch: str = ""
    fixed_batch: bool = False
    #: Where agents post, and by which token.
    url: str = ""
    token: str = ""
    #: How long steps last on virtual GPUs: a file by GPU type.
    paces: dict[str, str] = {}
    #: What to read from standard output: names of metrics and regular expressions.
    metrics: dict[str, str] = {}
    #: What a line that tells less than all is completed by: the batch size, and the epochs the job has.
    total_batch: int = 0
    epochs: float | None = None


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First request; ``log`` names the event log whose actions follow. The newest caller wins."""

    log: str


class Apply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Actions, in order of their ids; ``launches`` says what each job that starts runs."""

    actions: tuple[Action, ...]
    launches: dict[str, Launch] = {}


class AskInventory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is running, or has ended without an acknowledgement."""


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All events up to this number are in the log. Not answered."""

    number: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop all replicas, then end."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the inventory."""

    job: str
    attempt: int
    placement: Placement
    ended: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to any request; ``error`` is empty if it was carried out."""

    error: str = ""
    held: tuple[Held, ...] = ()


class Happened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An event, numbered by the keeper."""

    number: int
    event: AnyEvent


Request = Hello | Apply | AskInventory | Acknowledge | Shutdown
Reply = Answer | Happened

_encoder = msgspec.json.Encoder()
request_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
reply_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def line(message: Request | Reply) -> bytes:
    """The message as it goes over the socket."""
    return _encoder.encode(message) + b"\n"


@contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """A short path of the socket in ``directory``: an address holds 107 bytes, a directory's name may be longer."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


class Lines:
    """Cuts what a socket delivers into lines."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def receive(self) -> list[bytes] | None:
        """Complete lines after one read; None when the other side has closed."""
        try:
            data = self.connection.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
