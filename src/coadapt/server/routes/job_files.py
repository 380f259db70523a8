"""Routes of files that jobs wrote: their output and their checkpoints, as the executor's reader finds them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Annotated, Literal

import msgspec

from coadapt.executors import HubAwayError
from coadapt.model.snapshot import ENDED, HOLDING
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.http.problems import Refused, unavailable
from coadapt.server.http.routing import Call, Route
from coadapt.server.services import Services
from coadapt.wire.api import CheckpointLine, CheckpointPage, LogPart

#: Bytes of output in one answer.
MOST_TEXT = 256 << 10
_MOST_CHECKPOINTS = 1000
_MOST_RANKS = 1 << 20

Small = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Offset = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]


class LogsQuery(msgspec.Struct, frozen=True):
    """A negative ``offset`` counts from the end; without ``attempt`` it is the newest."""

    rank: Small = 0
    stream: Literal["out", "err"] = "out"
    attempt: Small | None = None
    offset: Offset = 0


async def logs(call: Call) -> LogPart:
    """``GET /v1/jobs/{job}/logs``. In a thread: the output may be on another machine, whose agent answers through this API."""
    job = call.services.seen(call.path["job"], call.caller)
    try:
        return await asyncio.to_thread(_log_part, call, job)
    except HubAwayError as error:
        raise unavailable(str(error), 5.0) from None


def _log_part(call: Call, job: JobState) -> LogPart:
    query: LogsQuery = call.query
    attempt = job.attempt if query.attempt is None else query.attempt
    over = attempt < job.attempt or job.phase in ENDED or (attempt > 0 and job.phase not in HOLDING)
    found = call.services.files.read_log(job.id, attempt, query.rank, query.stream, query.offset, MOST_TEXT)
    if found is None:
        if attempt > job.attempt:
            raise Refused(404, f"job {job.id} has had {job.attempt} attempts, not {attempt}")
        replicas = _replicas(call.services, job, attempt, over=over)
        if replicas and query.rank >= replicas:
            counted = (
                "1 replica, rank 0" if replicas == 1 else f"{replicas} replicas, ranks 0 to {replicas - 1}"
            )
            raise Refused(
                404, f"attempt {attempt} of job {job.id} has {counted}; there is no rank {query.rank}"
            )
        text, offset, at_end = "", max(query.offset, 0), True
    else:
        # not in the midst of a letter, unless nothing more may come
        cut = 0 if found.at_end else _unfinished(found.data)
        text = found.data[: len(found.data) - cut].decode(errors="replace")
        offset, at_end = found.offset - cut, found.at_end
    return LogPart(text=text, offset=offset, ended=over and at_end, attempt=attempt, rank=query.rank)


def _replicas(services: Services, job: JobState, attempt: int, *, over: bool) -> int:
    """The number of replicas of an attempt; 0: not known. An attempt that is over left a file for each rank."""
    if not over:
        return job.held.replicas
    ranks = range(_MOST_RANKS)
    return bisect_left(
        ranks, True, key=lambda rank: services.files.read_log(job.id, attempt, rank, "out", 0, 1) is None
    )


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
    found = [
        CheckpointLine(name=c.name, step=c.step, bytes=c.bytes, made_at=c.made_at, whole=c.whole)
        for c in call.services.files.checkpoints(job.id)
    ]
    found.sort(key=lambda line: (line.made_at, line.step), reverse=True)
    return CheckpointPage(checkpoints=found[:_MOST_CHECKPOINTS])


ROUTES = (
    Route("GET", "/v1/jobs/{job}/logs", logs, LogPart, query=LogsQuery),
    Route("GET", "/v1/jobs/{job}/checkpoints", checkpoints, CheckpointPage),
)
