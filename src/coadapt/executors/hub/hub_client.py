"""Requests to the hub from other processes of its machine: one connection, one line each way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from coadapt.errors import CoadaptError
from coadapt.executors.agent.session_messages import FindLog, HubReply, HubRequest, LogFound, reply_decoder
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.protocol import Lines, socket_path
from coadapt.store.home import Home
from coadapt.wire.node_messages import LogSlice, SavedCheckpoint, Stream

#: Seconds that the hub may take to answer; it asks agents for output in between.
_ANSWER_S = 15.0


class HubAwayError(CoadaptError):
    """No hub answers."""


def ask_hub(directory: Path, request: HubRequest, answer_s: float = _ANSWER_S) -> HubReply:
    """Sends a request to the hub of a directory; HubAwayError if none answers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(answer_s)
            with socket_path(directory) as path:
                connection.connect(path)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            lines = Lines(connection)
            while True:
                found = lines.receive()
                if found is None:
                    break
                if found:
                    return reply_decoder.decode(found[0])
    except (OSError, msgspec.MsgspecError) as error:
        raise HubAwayError(f"the hub in {directory} does not answer: {error}") from None
    raise HubAwayError(f"the hub in {directory} does not answer")


@contextmanager
def hub_address(home: Home) -> Iterator[str]:
    """Yields a path of the hub's socket, while it is open; FileNotFoundError if no hub ever ran."""
    with socket_path(home.hub) as path:
        yield path


def hub_reply(line: bytes) -> HubReply:
    """Decodes an answer of the hub; HubAwayError if it is none."""
    try:
        return reply_decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise HubAwayError(f"the hub's answer cannot be read: {error}") from None


class HubFiles:
    """Implements ``runtime.ports.JobFiles``: output is asked of the machine that has it; checkpoints are in a shared place.

    Args:
        directory: the hub's.
        checkpoints: the place of checkpoints.
    """

    def __init__(self, directory: Path, checkpoints: Path) -> None:
        self._directory, self._files = directory, NodeFiles(directory, checkpoints=checkpoints)

    def read_log(
        self, job: str, attempt: int, rank: int, stream: Stream, offset: int, limit: int
    ) -> LogSlice | None:
        """Asks the machine of replica ``rank`` of ``attempt`` of ``job`` for ``limit`` bytes at ``offset`` of ``stream``; see
        ``JobFiles.read_log``.
        """
        request = FindLog(job=job, attempt=attempt, rank=rank, stream=stream, offset=offset, limit=limit)
        answer = ask_hub(self._directory, request)
        assert isinstance(answer, LogFound)
        if answer.unreachable:
            raise HubAwayError(
                f"the output is on {answer.unreachable}, which does not answer; try again later"
            )
        return answer.part

    def checkpoints(self, job: str) -> list[SavedCheckpoint]:
        """Returns the checkpoints of a job in the shared place."""
        return self._files.checkpoints(job)
