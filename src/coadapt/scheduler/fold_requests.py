"""What users ask for: submit, cancel, pause, resume, retry, change; and an administrator's quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coadapt.model import (
    NOWHERE,
    CancelRequested,
    JobSpec,
    JobSubmitted,
    PauseRequested,
    QuotaSet,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
)
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.scheduler.ends import ended, unblock
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.transitions import next_phase

if TYPE_CHECKING:
    from coadapt.scheduler.state import SchedulerState


def job_submitted(state: SchedulerState, event: JobSubmitted) -> None:
    """It may run once all it waits for has succeeded."""
    if event.job in state.jobs:
        return  # submitted twice is submitted once
    job = JobState(event.job, event.spec, len(state.jobs), state.now)
    state.jobs[job.id] = job
    unmet = _unmet(state, job.spec)
    if _doomed(state, unmet):
        job.phase = Phase.CANCELLED
        job.end(state.now)
        state.ended += 1
        unblock(state, job)
    else:
        _await(state, job, unmet)


def _unmet(state: SchedulerState, spec: JobSpec) -> set[str]:
    """Jobs that it has to wait for, known or not."""
    return {a for a in spec.after if a not in state.jobs or state.jobs[a].phase is not Phase.SUCCEEDED}


def _doomed(state: SchedulerState, unmet: set[str]) -> bool:
    return any(name in state.jobs and state.jobs[name].phase in ENDED for name in unmet)


def _await(state: SchedulerState, job: JobState, unmet: set[str]) -> None:
    if unmet:
        state.blocked[job.id] = unmet
        for name in sorted(unmet):
            state.dependents.setdefault(name, []).append(job.id)
    state.admit(job)


def cancel_requested(state: SchedulerState, event: CancelRequested) -> None:
    """It ends at once, or once its processes are gone."""
    job = state.jobs.get(event.job)
    if job is None or job.phase in ENDED:
        return
    job.cancelling = True
    if job.phase in HOLDING:
        # nothing is promised to it any more while it is being stopped
        state.withdraw(job)
    else:
        job.phase = next_phase(job.phase, "CancelRequested", job.id)
        ended(state, job)


def pause_requested(state: SchedulerState, event: PauseRequested) -> None:
    """It holds nothing until it is resumed, whether it may be preempted or not: it is its user's wish."""
    job = state.jobs.get(event.job)
    if job is not None and job.phase not in ENDED and not job.cancelling and not job.on_hold:
        job.on_hold = True
        state.withdraw(job)


def resume_requested(state: SchedulerState, event: ResumeRequested) -> None:
    """It may run again, as soon as nothing else speaks against it."""
    job = state.jobs.get(event.job)
    if job is not None and job.on_hold:
        job.on_hold = False
        state.admit(job)


def retry_requested(state: SchedulerState, event: RetryRequested) -> None:
    """A failed or cancelled job waits again. One whose dependencies will never be met stays as it is, and so do jobs
    that were cancelled because of it."""
    job = state.jobs.get(event.job)
    if job is None or job.phase not in (Phase.FAILED, Phase.CANCELLED):
        return
    unmet = _unmet(state, job.spec)
    if not _doomed(state, unmet):
        revive(state, job)
        _await(state, job, unmet)


def revive(state: SchedulerState, job: JobState) -> None:
    """A job that has ended has not."""
    job.revive(state.now)
    state.ended -= 1


def spec_changed(state: SchedulerState, event: SpecChanged) -> None:
    """What the user may change of a job at any time; a target that it no longer allows is void."""
    job = state.jobs.get(event.job)
    if job is None or job.phase in ENDED or not _same_demands(event.spec, job.spec):
        return
    allowed = all(role.min <= job.target.count(role.name) <= role.max for role in event.spec.roles)
    if job.target and not allowed:
        if job.phase in HOLDING and not job.spec.preemptible:
            return
        state.set_target(job, NOWHERE)
    job.spec = event.spec
    state.note_moments(job)
    state.undecided = True


def _same_demands(one: JobSpec, other: JobSpec) -> bool:
    """Whether replicas of both take the same from a node: what is held and promised stays right."""
    return [(r.name, r.demand) for r in one.roles] == [(r.name, r.demand) for r in other.roles]


def quota_set(state: SchedulerState, event: QuotaSet) -> None:
    """The next decision keeps to it."""
    if event.gpus is None:
        state.quotas.pop(event.group, None)
    else:
        state.quotas[event.group] = event.gpus
    state.undecided = True


APPLY: dict[type, Callable[[Any, Any], None]] = {
    JobSubmitted: job_submitted,
    CancelRequested: cancel_requested,
    PauseRequested: pause_requested,
    ResumeRequested: resume_requested,
    RetryRequested: retry_requested,
    SpecChanged: spec_changed,
    QuotaSet: quota_set,
}
