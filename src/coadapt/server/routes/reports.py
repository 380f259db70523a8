"""The route by which agents report measurements of their own job, with the job's token; each enters the inbox once."""

from __future__ import annotations

from collections import OrderedDict

from coadapt.model import Measured
from coadapt.model.measurement import ReportLimits
from coadapt.model.snapshot import HOLDING
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.http.problems import Refused, not_found
from coadapt.server.http.routing import Call, Route
from coadapt.server.inbox_writer import Maker
from coadapt.wire.agent import Report, check_report
from coadapt.wire.api import Accepted

#: Reports remembered here; older ones the inbox knows by their keys.
_MOST_SEEN = 20_000


class Reports:
    """Receives reports and drops repeated ones."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    async def take(self, call: Call) -> Accepted:
        """``POST /v1/jobs/{job}/reports``."""
        report: Report = call.body
        job = call.path["job"]
        check_report(report)
        if report.job not in ("", job):
            raise Refused(422, f"the report is of job {report.job[:100]!r}, not of {job!r}")
        seen = self._seen.get((job, report.attempt, report.number)) if report.number else None
        if seen is not None:
            return Accepted(number=seen)
        state = await self._check_attempt(call, job, report.attempt)
        check_report(report, _limits(call, state))
        numbers = await call.services.put_made(*_entries(job, report)) if report.measurements else [0]
        if report.number:
            self._seen[job, report.attempt, report.number] = numbers[-1]
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
        return Accepted(number=numbers[-1])

    async def _check_attempt(self, call: Call, job: str, attempt: int) -> JobState:
        follower = call.services.follower
        follower.refresh()
        state = follower.state.jobs.get(job)
        if state is None or attempt > state.attempt:
            # an attempt is in the log before its first process exists: we have only not read it yet
            await call.services.catch_up()
            state = follower.state.jobs.get(job)
        if state is None:
            raise not_found("job", job)
        if attempt != state.attempt or state.phase not in HOLDING:
            raise Refused(409, f"attempt {attempt} of job {job} does not run")
        return state


def _limits(call: Call, job: JobState) -> ReportLimits:
    """What is known here: the size of the job's data, and the GPUs of all nodes, also of those that are away."""
    gpus = None
    if job.spec.gpus_per_replica:
        gpus = sum(each.node.gpus for each in call.services.follower.state.all_nodes.values())
    return ReportLimits(data_size=job.spec.data_size, gpus=gpus)


def _entries(job: str, report: Report) -> list[tuple[Maker, str | None]]:
    entries: list[tuple[Maker, str | None]] = []
    for place, measurement in enumerate(report.measurements):
        event = Measured(job=job, attempt=report.attempt, measurement=measurement)
        # by the key a repeat is known also after this process was started anew
        key = f"report:{job}:{report.attempt}:{report.number}:{place}" if report.number else None
        entries.append((lambda number, event=event: event, key))  # type: ignore[misc]
    return entries


def routes() -> tuple[Route, ...]:
    """With a memory of their own."""
    return (
        Route(
            "POST",
            "/v1/jobs/{job}/reports",
            Reports().take,
            Accepted,
            "job",
            Report,
            status=202,
            lenient=True,
        ),
    )
