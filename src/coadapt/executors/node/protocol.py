"""Messages between the local executor and the keeper: one JSON object per line.

The executor sends requests, the keeper answers each in order. Events come in between as ``Happened``: every event
that was not acknowledged is sent again to the next connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coadapt.model import Action, AnyEvent, Placement
from coadapt.wire.node_messages import Launch

SOCKET = "keeper.sock"
#: Version of these messages; a keeper outlives upgrades, and must not misread a launch.
PROTOCOL = 4


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First request; ``log`` names the event log whose actions follow. Of callers of one ``epoch`` the newest wins; one of a
    smaller epoch than any before was replaced, and is refused.
    """

    log: str
    protocol: int = 1
    epoch: int = 0


class Apply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Actions, in order of their ids; ``launches`` says what each job that starts runs."""

    actions: tuple[Action, ...]
    launches: dict[str, Launch] = {}


class AskInventory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Request: what runs, or has ended without an acknowledgement."""


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All events up to this number are in the log. Not answered."""

    number: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop all replicas, then end."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the inventory."""

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
    """Encodes a message for the socket."""
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
    """Splits what a socket delivers into lines."""

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
