"""What was predicted of jobs, beside what came: the first forecast of each, and when it really ended."""

from __future__ import annotations

from coadapt.model.snapshot import Phase
from coadapt.scheduler.job_state import JobState
from coadapt.server.routing import Call, Route
from coadapt.server.standing import moments
from coadapt.wire.api import MOST_ROWS, PredictionLine, PredictionPage


def page(call: Call) -> PredictionPage:
    """``GET /v1/predictions``: newest jobs first. Only a job that succeeded has come to the end that was predicted; of one
    that failed or was cancelled nobody will know, nor is it still to come."""
    follower, visible = call.services.follower, call.services.visible(call.caller)
    follower.refresh()
    lines: list[PredictionLine] = []
    for job in reversed(follower.state.jobs.values()):
        if job.phase in (Phase.FAILED, Phase.CANCELLED):
            continue
        if (line := line_of(job)) is None or not visible(job.id):
            continue
        lines.append(line)
        if len(lines) == MOST_ROWS:
            break
    return PredictionPage(predictions=lines)


def line_of(job: JobState) -> PredictionLine | None:
    """What was first said of the job, and what came; None where nothing was said."""
    if job.first_forecast is None or job.first_forecast_at is None:
        return None
    return PredictionLine(
        job=job.id,
        said_at=job.first_forecast_at,
        predicted=moments(job.first_forecast, job.first_forecast_at),
        actual=job.finished_at if job.phase is Phase.SUCCEEDED else None,
    )


ROUTES = (Route("GET", "/v1/predictions", page, PredictionPage),)
