"""What each page shows: the very answers of the API, so that a page cannot say something else than ``/v1`` does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, get_args

import msgspec
from starlette.responses import Response

from coadapt.model import AnyEvent
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.server import cluster, course, job_files, jobs, predictions, why
from coadapt.server.dashboard.rendering import answered, page, rendered
from coadapt.server.dashboard.scatter import judged, scatter
from coadapt.server.health import LEASE_S
from coadapt.server.jobs import Count, JobsQuery
from coadapt.server.routing import Call
from coadapt.wire.api import ClusterNow, JobPage

#: Rows on the first page: of jobs that hold GPUs, that wait, and that have ended; and on a page of all.
_MOST_AT_WORK, _MOST_WAITING, _MOST_ENDED, _ROWS = 100, 50, 10, 100
#: Callers whose first page is kept.
_MOST_KEPT = 64
#: Bytes of output, and how many of the newest changes.
_TAIL, _CHANGES = 16_000, 40
#: What may happen: a browser has to name what it listens to.
KINDS = " ".join(sorted(kind.__name__ for kind in get_args(AnyEvent)))
_WAITING = [phase for phase in Phase if phase not in ENDED and phase not in HOLDING]


class ListQuery(msgspec.Struct, frozen=True):
    """``after`` is the ``next`` of the page before."""

    after: Count | None = None


def first(call: Call) -> Response:
    """``GET /``: the cluster now, and its jobs. Made once for all who look within a second in which nothing happens."""
    call.services.follower.refresh()
    follower, kept = call.services.follower, call.services.first_pages
    age_s = call.services.controller_age_s()
    away = age_s is None or age_s > LEASE_S
    key = (follower.position, int(follower.now), away)
    if kept.get(call.caller, (None,))[0] != key:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[call.caller] = key, _first(call)
    return answered(kept[call.caller][1])


def _first(call: Call) -> bytes:
    return rendered(
        "cluster.html",
        **around(call, "cluster"),
        active=_jobs(call, list(HOLDING), _MOST_AT_WORK),
        waiting=_jobs(call, _WAITING, _MOST_WAITING),
        ended=_jobs(call, list(ENDED), _MOST_ENDED),
    )


def listed(call: Call) -> Response:
    """``GET /jobs``: all of them, newest first, in pages."""
    return page("jobs.html", **around(call, "jobs"), found=_jobs(call, list(Phase), _ROWS, call.query.after))


async def job(call: Call) -> Response:
    """``GET /jobs/JOB``."""
    detail = jobs.detail(call)
    told = course.course(call)
    return page(
        "job.html",
        **around(call, "jobs"),
        detail=detail,
        line=detail.line,
        why=await why.why(call._replace(query=why.WhyQuery())),
        changes=told.changes[: -_CHANGES - 1 : -1],
        earlier=max(len(told.changes) - _CHANGES, 0),
        prediction=predictions.line_of(call.services.seen(detail.line.job, call.caller)),
        outputs={stream: _output(call, stream) for stream in ("out", "err")},
    )


def predicted(call: Call) -> Response:
    """``GET /predictions``: what was said of jobs, beside what came."""
    lines = predictions.page(call).predictions
    submitted = {
        line.job: job.submitted_at
        for line in lines
        if (job := call.services.follower.job(line.job)) is not None
    }
    known = [row for line in lines if (row := judged(line, submitted.get(line.job))) is not None]
    return page(
        "predictions.html",
        **around(call, "predictions"),
        lines=lines,
        rows=known,
        off_by=median(abs(row.error) for row in known) if known else None,
        plot=scatter(known),
    )


def around(call: Call, here: str) -> dict[str, Any]:
    """What the frame of every page needs."""
    now: ClusterNow = cluster.now(call)
    age_s = now.controller_age_s
    return {
        "here": here,
        "kinds": KINDS,
        "cluster": now,
        "now": now.now,
        "caller": call.caller,
        "controller_away": age_s is None or age_s > LEASE_S,
    }


def _jobs(call: Call, phases: Sequence[str], limit: int, after: int | None = None) -> JobPage:
    query = JobsQuery(phase=",".join(phases), limit=limit, after=after)
    return msgspec.json.decode(jobs.page(call._replace(query=query)).body, type=JobPage)


def _output(call: Call, stream: Any) -> str:
    """The last lines, each whole, without reports: those are drawn."""
    text = job_files.logs(call._replace(query=job_files.LogsQuery(stream=stream, offset=-_TAIL))).text
    if len(text.encode(errors="replace")) >= _TAIL:
        text = text.partition("\n")[2]
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("COADAPT {"))
