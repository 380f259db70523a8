"""Routes that read jobs: pages of jobs, and one job in detail."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.responses import Response

from coadapt.model.snapshot import ShownState
from coadapt.server.event_text import shown_spec
from coadapt.server.http.problems import JSON, Refused
from coadapt.server.http.routing import Call, Route
from coadapt.wire.api import MOST_ROWS, JobDetail, JobPage

Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]


class JobsQuery(msgspec.Struct, frozen=True):
    """``state`` may name several, with commas between; ``after`` is the ``next`` of the page before."""

    state: str = ""
    user: str = ""
    limit: Rows = 100
    after: Count | None = None


class _EncodedPage(msgspec.Struct, frozen=True):
    """A ``JobPage`` whose lines are JSON already."""

    jobs: list[msgspec.Raw]
    total: int
    next: int | None
    seq: int


def page(call: Call) -> Response:
    """``GET /v1/jobs``: newest first."""
    services, query = call.services, call.query
    follower = services.follower
    follower.refresh()
    user = query.user or None
    if call.caller.role == "user":
        # for others' jobs the page is empty: whether there are any is not theirs to know
        user = call.caller.name if user in (None, call.caller.name) else ""
    names, total, following = follower.index.page(
        user=user, states=_states(query.state), before=query.after, limit=query.limit
    )
    found = [job for name in names if (job := follower.job(name)) is not None]
    encoded = _EncodedPage(
        jobs=[services.lines.encoded(job) for job in found],
        total=total,
        next=following,
        seq=follower.state.seq,
    )
    return Response(msgspec.json.encode(encoded), media_type=JSON)


def _states(text: str) -> list[str]:
    if not text:
        return list(ShownState)
    states = [part.strip().upper() for part in text.split(",")]
    for state in states:
        if state not in ShownState.__members__:
            raise Refused(400, f"unknown state {state[:40]!r}; use one of {', '.join(ShownState).lower()}")
    return list(dict.fromkeys(states))


def detail(call: Call) -> JobDetail:
    """``GET /v1/jobs/{job}``."""
    job = call.services.seen(call.path["job"], call.caller)
    failure, follower = job.failure, call.services.follower
    return JobDetail(
        line=call.services.lines.line(job),
        spec=shown_spec(call.services.follower.spec(job)),
        placement={
            node: sum(slot.replicas for slot in job.held.slots if slot.node == node)
            for node in sorted({slot.node for slot in job.held.slots})
        },
        tail="" if failure is None else failure.tail,
        rank=None if failure is None else failure.rank,
        exit_code=None if failure is None else failure.exit_code,
        kind="" if failure is None else failure.kind,
        advice=follower.advisor.of(follower.state, job, follower.now),
    )


ROUTES = (
    Route("GET", "/v1/jobs", page, JobPage, query=JobsQuery),
    Route("GET", "/v1/jobs/{job}", detail, JobDetail),
)
