"""What executors and agents report: attempts start, change, hang, end; measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coadapt.model import (
    NOWHERE,
    JobFinished,
    JobHung,
    JobResized,
    JobStarted,
    JobStopped,
    Measured,
    ReplicasReleased,
    ResizeJob,
)
from coadapt.model.snapshot import ENDED, Phase
from coadapt.model.tries import hung
from coadapt.scheduler.ends import ended
from coadapt.scheduler.job_state import JobState

if TYPE_CHECKING:
    from coadapt.scheduler.state import SchedulerState


def job_started(state: SchedulerState, event: JobStarted) -> None:
    """All replicas of the attempt train."""
    job = state.current(event.job, event.attempt)
    if job is not None and job.phase is Phase.STARTING:
        _confirm(state, job, "JobStarted")


def replicas_released(state: SchedulerState, event: ReplicasReleased) -> None:
    """In a resize: what it leaves is free."""
    job = _resizing(state, event)
    if job is not None and job.held != event.placement:
        state.hold(job, event.placement)


def job_resized(state: SchedulerState, event: JobResized) -> None:
    """All replicas of the new placement train."""
    job = _resizing(state, event)
    if job is not None:
        if job.held != event.placement:
            state.hold(job, event.placement)
        _confirm(state, job, "JobResized")


def _confirm(state: SchedulerState, job: JobState, what: str) -> None:
    job.confirm_change(what, state.now)
    state.note_moments(job)
    state.note_settled(job)


def _resizing(state: SchedulerState, event: ReplicasReleased | JobResized) -> JobState | None:
    """The job, if this very resize is under way; one attempt may be resized many times."""
    job = state.current(event.job, event.attempt)
    if job is None or job.phase is not Phase.RESIZING:
        return None
    action = job.in_flight
    return job if isinstance(action, ResizeJob) and action.placement == event.placement else None


def job_hung(state: SchedulerState, event: JobHung) -> None:
    """The attempt is to be stopped, and its end will be a failure; one that is being stopped anyway just ends."""
    job = state.current(event.job, event.attempt)
    if job is None or job.phase is Phase.STOPPING or job.cancelling or job.stopped_for is not None:
        return
    job.stopped_for = hung(event, state.now)
    state.withdraw(job)


def attempt_gone(state: SchedulerState, event: JobStopped | JobFinished) -> None:
    """The last process is gone."""
    job = state.current(event.job, event.attempt)
    if job is None:
        return
    asked_for = job.phase is Phase.STOPPING and isinstance(event, JobStopped)
    job.end_attempt(event, state.now)
    state.hold(job, NOWHERE)
    if job.phase in ENDED:
        ended(state, job)
    elif job.retry_at is not None:
        state.withdraw(job)
    elif not asked_for:
        # gone without our asking: its promise is void, the next decision places it anew
        state.set_target(job, NOWHERE)
        state.undecided = True
    state.note_moments(job)
    state.note_settled(job)


def measured(state: SchedulerState, event: Measured) -> None:
    """An agent's report."""
    job = state.current(event.job, event.attempt)
    if job is not None:
        job.measure(event.measurement, event.attempt, state.now)
        if setup_s := event.measurement.overheads_s.get("setup"):
            job.note_setup(setup_s)


APPLY: dict[type, Callable[[Any, Any], None]] = {
    JobStarted: job_started,
    ReplicasReleased: replicas_released,
    JobResized: job_resized,
    JobHung: job_hung,
    JobStopped: attempt_gone,
    JobFinished: attempt_gone,
    Measured: measured,
}
