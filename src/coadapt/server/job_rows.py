"""Jobs as rows of ``ps``, in the format of the API; cached in encoded form until something happens to the job."""

from __future__ import annotations

import msgspec

from coadapt.explain.deadline_advice import AT_RISK
from coadapt.explain.explanation import short
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.event_text import discreet
from coadapt.server.log_follower import Follower
from coadapt.spec.prices import Prices
from coadapt.units import format_chance
from coadapt.wire.api import JobLine

#: Seconds for which a line of a job that runs, and of one that waits, is true enough.
_RUNNING_S, _WAITING_S = 1.0, 10.0


class Lines:
    """The rows by job; a page costs only the rows on it that have changed."""

    def __init__(self, follower: Follower, prices: Prices) -> None:
        self._follower, self._prices = follower, prices
        self._kept: dict[str, tuple[object, msgspec.Raw]] = {}

    def encoded(self, job: JobState) -> msgspec.Raw:
        """Returns the row of a job as JSON."""
        key = (self._follower.versions.get(job.id), self._moment(job))
        kept = self._kept.get(job.id)
        if kept is None or kept[0] != key:
            kept = self._kept[job.id] = (key, msgspec.Raw(msgspec.json.encode(self.line(job))))
        return kept[1]

    def line(self, job: JobState) -> JobLine:
        """Returns the row of a job as of now."""
        follower, now = self._follower, self._follower.now
        state, spec = follower.state, job.spec
        stands = follower.standings.of(state, job, now)
        return JobLine(
            job=job.id,
            name=spec.name,
            user=spec.user,
            team=spec.team,
            order=job.order,
            phase=job.phase,
            on_hold=job.on_hold,
            quarantined=job.quarantine is not None,
            retry_at=job.retry_at,
            after=sorted(state.blocked.get(job.id, ())),
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            attempt=job.attempt,
            restarts=stands.restarts,
            gpus=job.held_gpus or job.target_gpus,
            gpu_type=(job.held or job.target).gpu_type,
            nodes=sorted({slot.node for slot in (job.held or job.target).slots}),
            batch=None if job.config is None else job.config.batch,
            progress=stands.progress,
            efficiency=stands.efficiency,
            goodput=stands.goodput,
            eta=stands.eta,
            deadline_at=None if spec.deadline_s is None else job.submitted_at + spec.deadline_s,
            late=stands.late,
            gpu_s=stands.gpu_s,
            cost=self._cost(job, now),
            why=_risk(job, stands.late, now) + self._why(job, now),
            metrics=job.metrics,
            failure=_failure(job),
        )

    def _why(self, job: JobState, now: float) -> str:
        """As its owner may read it: a line is the same for all who see it."""
        follower = self._follower
        if follower.is_pending(job.id):
            return "submitted; the controller has not taken it yet"

        def visible(name: str) -> bool:
            other = follower.job(name)
            return other is not None and other.spec.user == job.spec.user

        return discreet(short(follower.state, job, now), lambda name: follower.job(name) is not None, visible)

    def _cost(self, job: JobState, now: float) -> float | None:
        if not self._prices.by_type:
            return None
        service = job.attained_by_type(min(now, job.finished_at or now))
        return sum(gpu_s / 3600 * (self._prices.of(kind) or 0.0) for kind, gpu_s in service.items())

    def _moment(self, job: JobState) -> int:
        """Counts the stretches of time in which a line stays as it is."""
        if job.phase in ENDED:
            return 0
        return int(self._follower.now / (_RUNNING_S if job.phase in HOLDING else _WAITING_S))


def _risk(job: JobState, late: float | None, now: float) -> str:
    """What is to be said first of a job that will more likely be late than not; what would save it is on its page."""
    if late is None or late < AT_RISK or job.phase in ENDED:
        return ""
    if now > job.submitted_at + (job.spec.deadline_s or 0.0):
        return "its deadline has passed; "
    return f"deadline at risk (missed with {format_chance(late)}); "


def _failure(job: JobState) -> str:
    """How it failed last, and in a few words why."""
    failure = job.failure
    if failure is None or job.phase is Phase.SUCCEEDED:
        return ""
    return ": ".join(part for part in (failure.kind, failure.reason) if part)[:200]
