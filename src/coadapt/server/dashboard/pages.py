"""The content of each page, and the chart of predicted against actual times.

Pages show the answers of the API, so that a page cannot contradict ``/v1``. The chart compares how long each job was
predicted to take when first asked with how long it took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple, get_args

import msgspec
from starlette.responses import Response

from coadapt.model import AnyEvent
from coadapt.model.snapshot import ENDED, HOLDING, WAITING, ShownState
from coadapt.server.dashboard.rendering import answered, page, rendered
from coadapt.server.http.routing import Call
from coadapt.server.routes import cluster, job_course, job_files, jobs, predictions, why
from coadapt.server.routes.health import LEASE_S
from coadapt.server.routes.jobs import Count, JobsQuery
from coadapt.wire.api import ClusterNow, JobPage, PredictionLine

SIDE, _EDGE = 320.0, 34.0
#: Durations that axes may begin and end with.
_TICKS = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)


class Judged(NamedTuple):
    """One job that came to the end that was predicted; seconds since it was submitted."""

    job: str
    predicted_s: float
    low_s: float
    high_s: float | None
    actual_s: float

    @property
    def within(self) -> bool:
        """True if the actual time lies in the predicted interval."""
        return self.low_s <= self.actual_s and (self.high_s is None or self.actual_s <= self.high_s)

    @property
    def error(self) -> float:
        """Relative error: predicted over actual, less one."""
        return self.predicted_s / self.actual_s - 1


class Plot(NamedTuple):
    """Coordinates of the chart's points and ticks."""

    points: list[tuple[float, float, float, float, Judged]]
    ticks: list[tuple[float, int]]


def judged(line: PredictionLine, submitted_at: float | None) -> Judged | None:
    """Compares a prediction with the actual end; None if the job has not ended or was not seen."""
    if line.actual is None or submitted_at is None or line.actual <= submitted_at:
        return None
    said, high = line.predicted, line.predicted.high
    return Judged(
        job=line.job,
        predicted_s=said.value - submitted_at,
        low_s=said.low - submitted_at,
        high_s=None if high is None else high - submitted_at,
        actual_s=line.actual - submitted_at,
    )


def scatter(rows: Sequence[Judged]) -> Plot | None:
    """x, y, and the ends of the range, for each job, on logarithmic axes that both are alike."""
    if not rows:
        return None
    values = [max(value, 1.0) for row in rows for value in (row.predicted_s, row.actual_s)]
    low = max((tick for tick in _TICKS if tick <= min(values)), default=_TICKS[0])
    high = min((tick for tick in _TICKS if tick >= max(values)), default=max(values))
    high = max(high, 10 * low)

    def place(seconds: float) -> float:
        share = math.log(max(seconds, 1.0) / low) / math.log(high / low)
        return _EDGE + min(max(share, 0.0), 1.0) * (SIDE - 2 * _EDGE)

    points = [
        (
            place(row.actual_s),
            SIDE - place(row.predicted_s),
            SIDE - place(row.low_s),
            SIDE - place(high if row.high_s is None else row.high_s),
            row,
        )
        for row in rows
    ]
    return Plot(points, [(place(tick), tick) for tick in _TICKS if low <= tick <= high])


#: Rows on the first page: of jobs that hold GPUs, that wait, and that have ended; and on a page of all.
_MOST_AT_WORK, _MOST_WAITING, _MOST_ENDED, _ROWS = 100, 50, 10, 100
#: Callers whose first page is kept.
_MOST_KEPT = 64
#: Bytes of output, and how many of the newest changes.
_TAIL, _CHANGES = 16_000, 40
#: What may happen: a browser has to name what it listens to.
KINDS = " ".join(sorted(kind.__name__ for kind in get_args(AnyEvent)))


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
        waiting=_jobs(call, list(WAITING), _MOST_WAITING),
        ended=_jobs(call, list(ENDED), _MOST_ENDED),
    )


def listed(call: Call) -> Response:
    """``GET /jobs``: all of them, newest first, in pages."""
    return page(
        "jobs.html", **around(call, "jobs"), found=_jobs(call, list(ShownState), _ROWS, call.query.after)
    )


async def job(call: Call) -> Response:
    """``GET /jobs/JOB``."""
    detail = jobs.detail(call)
    told = job_course.course(call)
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
    """Returns the data of the frame that every page has."""
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


def _jobs(call: Call, states: Sequence[str], limit: int, after: int | None = None) -> JobPage:
    query = JobsQuery(state=",".join(states), limit=limit, after=after)
    return msgspec.json.decode(jobs.page(call._replace(query=query)).body, type=JobPage)


def _output(call: Call, stream: Any) -> str:
    """The last lines, each whole, without reports: those are drawn."""
    text = job_files.logs(call._replace(query=job_files.LogsQuery(stream=stream, offset=-_TAIL))).text
    if len(text.encode(errors="replace")) >= _TAIL:
        text = text.partition("\n")[2]
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("COADAPT {"))
