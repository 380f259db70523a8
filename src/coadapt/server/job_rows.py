"""Jobs as rows of ``ps``, in the format of the API; cached in encoded form until something happens to the job."""

from __future__ import annotations

import msgspec

from coadapt.explain.deadline_advice import AT_RISK
from coadapt.explain.explanation import short
from coadapt.model.interval import Interval
from coadapt.model.snapshot import ENDED, HOLDING, Phase, ShownState
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.event_text import discreet
from coadapt.server.log_follower import Follower
from coadapt.server.lookahead_process import Outlooks
from coadapt.spec.prices import Prices
from coadapt.units import format_chance
from coadapt.wire.api import JobLine

#: Seconds for which a line of a job that runs, and of one that waits, is true enough.
_RUNNING_S, _WAITING_S = 1.0, 10.0
#: Share of the work from which on a running job is about to end.
_FINISHING = 0.999


class Lines:
    """The rows by job; a page costs only the rows on it that have changed."""

    def __init__(self, follower: Follower, prices: Prices, outlooks: Outlooks) -> None:
        self._follower, self._prices, self._outlooks = follower, prices, outlooks
        self._kept: dict[str, tuple[object, msgspec.Raw]] = {}

    def encoded(self, job: JobState) -> msgspec.Raw:
        """Returns the row of a job as JSON."""
        key = (self._follower.versions.get(job.id), *self._moment(job))
        kept = self._kept.get(job.id)
        if kept is None or kept[0] != key:
            kept = self._kept[job.id] = (key, msgspec.Raw(msgspec.json.encode(self.line(job))))
        return kept[1]

    def line(self, job: JobState) -> JobLine:
        """Returns the row of a job as of now."""
        follower, now = self._follower, self._follower.now
        state, spec = follower.state, job.spec
        stands, why = follower.standings.of(state, job, now), self._why(job, now)
        return JobLine(
            job=job.id,
            name=spec.name,
            user=spec.user,
            team=spec.team,
            order=job.order,
            state=job.shown_state,
            on_hold=job.on_hold,
            retry_at=job.retry_at,
            after=sorted(state.blocked.get(job.id, ())),
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            attempt=job.attempt,
            restarts=stands.restarts,
            gpus=job.held_gpus,
            gpu_type=job.held.gpu_type if job.held_gpus else "",
            nodes=sorted({slot.node for slot in job.held.slots}),
            batch=_batch(job),
            progress=stands.progress,
            efficiency=stands.efficiency,
            goodput=stands.goodput,
            eta=stands.eta or self._outlook(job, now),
            finishing=job.phase is Phase.RUNNING and (stands.progress or 0.0) >= _FINISHING,
            deadline_at=None if spec.deadline_s is None else job.submitted_at + spec.deadline_s,
            late=stands.late,
            gpu_s=stands.gpu_s,
            cost=self._cost(job, now),
            why=_risk(job, stands.late, now) + why,
            metrics=job.metrics,
            failure=why if job.phase is Phase.FAILED else "",
        )

    def _outlook(self, job: JobState, now: float) -> Interval | None:
        """The end of a job that waits for GPUs, as of the newest look-ahead."""
        if job.shown_state not in (ShownState.QUEUED, ShownState.PREEMPTED):
            return None
        found = self._outlooks.of(job.id)
        return found if found is not None and found.value > now else None

    def _why(self, job: JobState, now: float) -> str:
        """As its owner may read it: a line is the same for all who see it."""
        follower = self._follower
        if follower.is_pending(job.id):
            return "Submitted. The controller has not processed it yet."

        def visible(name: str) -> bool:
            other = follower.job(name)
            return other is not None and other.spec.user == job.spec.user

        return discreet(short(follower.state, job, now), lambda name: follower.job(name) is not None, visible)

    def _cost(self, job: JobState, now: float) -> float | None:
        if not self._prices.by_type:
            return None
        service = job.attained_by_type(min(now, job.finished_at or now))
        return sum(gpu_s / 3600 * (self._prices.of(kind) or 0.0) for kind, gpu_s in service.items())

    def _moment(self, job: JobState) -> tuple[int, int, int]:
        """Returns what a row depends on besides the job: time, the look-ahead, and the last change of nodes or quotas."""
        if job.phase in ENDED:
            return 0, 0, 0
        changed = self._follower.resources_seq
        if job.phase in HOLDING:
            return int(self._follower.now / _RUNNING_S), 0, changed
        return int(self._follower.now / _WAITING_S), self._outlooks.version, changed


def _risk(job: JobState, late: float | None, now: float) -> str:
    """What is to be said first of a job that will more likely be late than not; what would save it is on its page."""
    if late is None or late < AT_RISK or job.phase in ENDED:
        return ""
    if now > job.submitted_at + (job.spec.deadline_s or 0.0):
        return "Deadline missed. "
    return f"Deadline at risk ({format_chance(late)} chance to miss it). "


def _batch(job: JobState) -> int | None:
    """Batch size in use. The readings of a job that never named one say 1 for each replica."""
    if job.config is None or (job.spec.batch is None and job.config.atomic_batch == 1):
        return None
    return job.config.batch
