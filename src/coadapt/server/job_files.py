"""What jobs wrote: their output, and their checkpoints."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Annotated, BinaryIO, Literal

import msgspec

from coadapt.cluster.home import Home
from coadapt.model.snapshot import ENDED, HOLDING
from coadapt.server.files import directory_beneath, file_beneath, regular_files
from coadapt.server.problems import Refused
from coadapt.server.routing import Call, Route
from coadapt.wire.api import CheckpointLine, CheckpointPage, LogPart

#: Bytes of output in one answer.
MOST_TEXT = 256 << 10
_MOST_CHECKPOINTS = 1000
#: What coadapt.torch keeps beside its checkpoints (docs/agent-protocol.md): nothing goes on from these.
_BESIDE = frozenset(["attempt", "history.jsonl"])
_STEP = re.compile(r"(\d{1,15})")

Small = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Offset = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]


class LogsQuery(msgspec.Struct, frozen=True):
    """A negative ``offset`` counts from the end; without ``attempt`` it is the newest."""

    rank: Small = 0
    stream: Literal["out", "err"] = "out"
    attempt: Small | None = None
    offset: Offset = 0


def logs(call: Call) -> LogPart:
    """``GET /v1/jobs/{job}/logs``."""
    job = call.services.seen(call.path["job"], call.caller)
    query: LogsQuery = call.query
    attempt = job.attempt if query.attempt is None else query.attempt
    over = attempt < job.attempt or job.phase in ENDED or (attempt > 0 and job.phase not in HOLDING)
    root = call.services.home.keeper / "logs"
    name = f"{query.rank}.{query.stream}"
    try:
        with file_beneath(root, f"{job.id}.{attempt}", name) as file:
            text, offset, at_end = _part(file, query.offset)
    except FileNotFoundError:
        if attempt > job.attempt:
            raise Refused(404, f"job {job.id} has had {job.attempt} attempts, not {attempt}") from None
        text, offset, at_end = "", max(query.offset, 0), True
    return LogPart(text=text, offset=offset, ended=over and at_end, attempt=attempt, rank=query.rank)


def _part(file: BinaryIO, offset: int) -> tuple[str, int, bool]:
    """Text from ``offset`` on, where it ends, and whether that is the end of the file."""
    size = os.fstat(file.fileno()).st_size
    start = max(size + offset, 0) if offset < 0 else offset if offset <= size else 0  # it was emptied
    with suppress(OSError):  # the beginning of a long file is a hole: the keeper freed it
        start = os.lseek(file.fileno(), start, os.SEEK_DATA)
    file.seek(start)
    data = file.read(MOST_TEXT)
    if start + len(data) < size:
        # not in the midst of a letter
        data = data[: len(data) - _unfinished(data)]
    end = start + len(data)
    return data.decode(errors="replace"), end, end >= size


def _unfinished(data: bytes) -> int:
    """Bytes at the end that begin a letter of UTF-8 and do not end it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        length = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return back if length > back else 0
    return 0


def checkpoints(call: Call) -> CheckpointPage:
    """``GET /v1/jobs/{job}/checkpoints``: newest first."""
    job = call.services.seen(call.path["job"], call.caller)
    found = checkpoints_of(call.services.home, job.id)
    found.sort(key=lambda line: (line.made_at, line.step), reverse=True)
    return CheckpointPage(checkpoints=found[:_MOST_CHECKPOINTS])


def checkpoints_of(home: Home, job: str) -> list[CheckpointLine]:
    """All that there are, in no order; those that are not whole, too."""
    try:
        with directory_beneath(home.checkpoints, job) as directory:
            return [_checkpoint(name, stat) for name, stat in regular_files(directory) if name not in _BESIDE]
    except FileNotFoundError:
        return []


def _checkpoint(name: str, stat: os.stat_result) -> CheckpointLine:
    step = _STEP.search(name)
    return CheckpointLine(
        name=name.encode(errors="replace").decode(),
        step=int(step[1]) if step else 0,
        bytes=stat.st_size,
        made_at=stat.st_mtime,
        # who saves writes beside and renames when it is whole
        whole=not (name.startswith(".") or name.endswith((".tmp", ".part"))),
    )


ROUTES = (
    Route("GET", "/v1/jobs/{job}/logs", logs, LogPart, query=LogsQuery),
    Route("GET", "/v1/jobs/{job}/checkpoints", checkpoints, CheckpointPage),
)
