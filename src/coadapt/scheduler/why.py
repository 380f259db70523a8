"""Why a job is as it is: the dominant reason in one sentence with numbers, who holds what, and what comes next.

Pure and read from the state alone; ``why --at T`` is this on a log folded up to T. ``short`` is the sentence for a table: it
looks at the job and at nobody else.
"""

from __future__ import annotations

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.model.snapshot import ENDED, Phase
from coadapt.scheduler import why_ended, why_running, why_waiting
from coadapt.scheduler.advice import Advisor
from coadapt.scheduler.holders import Holder
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.phrases import failed
from coadapt.scheduler.standing import Standings
from coadapt.scheduler.state import SchedulerState
from coadapt.scheduler.why_said import Said


class Explanation(Fact, frozen=True):
    """What is to be said about a job at a moment."""

    job: str
    at: float
    phase: Phase
    sentence: str
    code: str
    numbers: dict[str, float] = {}
    holders: tuple[Holder, ...] = ()
    #: What comes next, or what could be done.
    next: str = ""
    #: The decision that it stems from, and when it was made.
    decision: int | None = None
    decided_at: float | None = None
    #: Where its deadline is at risk: by how much, and what would save it.
    advice: str = ""


def why(
    state: SchedulerState,
    job: str,
    now: float | None = None,
    standings: Standings | None = None,
    advisor: Advisor | None = None,
) -> Explanation:
    """The job at ``now`` (default: at the last record). ``standings``, ``advisor``: kept by whoever asks often."""
    known = state.jobs.get(job)
    if known is None:
        raise InputError(f"there is no job {job!r}")
    at = state.now if now is None else max(now, state.now)
    standings = standings or Standings()
    said = _said(state, known, standings, at)
    return Explanation(
        job=job,
        at=at,
        phase=known.phase,
        sentence=said.sentence,
        code=said.code,
        numbers=dict(said.numbers),
        holders=said.holders,
        next=said.next,
        decision=known.reason_decision if said.decided else None,
        decided_at=known.reason_at if said.decided else None,
        advice=(advisor or Advisor(standings)).of(state, known, at),
    )


def _said(state: SchedulerState, job: JobState, standings: Standings, now: float) -> Said:
    if job.phase in ENDED:
        return why_ended.said(state, job)
    if job.cancelling or job.stopped_for is not None or job.phase is Phase.STOPPING:
        return why_running.stopping(job, now)
    if job.on_hold or job.retry_at is not None or job.id in state.blocked:
        return why_waiting.held_back(state, job, now)
    if job.phase in (Phase.PENDING, Phase.PAUSED):
        return why_waiting.waiting(state, job, standings, now)
    return why_running.said(state, job, standings, now)


def short(state: SchedulerState, job: JobState, now: float) -> str:
    """For a table: one clause, at the cost of looking at this job alone."""
    if job.phase in ENDED:
        return why_ended.said(state, job).sentence
    if job.cancelling or job.stopped_for is not None or job.phase is Phase.STOPPING:
        return why_running.stopping(job, now).sentence
    if job.on_hold:
        return "on hold: its user paused it"
    if job.retry_at is not None and job.failure is not None:
        return f"tried again in {why_waiting.until(job.retry_at, now)}: {failed(job.failure)}"
    if job.id in state.blocked:
        return why_waiting.blocked(state, job).sentence
    if why_waiting.reason_holds(job) and job.reason is not None:
        return job.reason.text
    if job.phase in (Phase.PENDING, Phase.PAUSED):
        return why_waiting.queued(job)
    return why_running.plain(job, now)
