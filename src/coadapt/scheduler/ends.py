"""The end of a job, and what it means for those that waited for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt.model.snapshot import Phase
from coadapt.predict.history import add
from coadapt.scheduler.job_state import JobState

if TYPE_CHECKING:
    from coadapt.scheduler.state import SchedulerState


def ended(state: SchedulerState, job: JobState) -> None:
    """The job has ended in the phase it is in."""
    _end(state, job)
    unblock(state, job)


def _end(state: SchedulerState, job: JobState) -> None:
    state.ended += 1
    if job.phase is Phase.SUCCEEDED and job.teaches:
        state.pool = add(state.pool, job.as_past(state.now))
    job.end(state.now)
    state.withdraw(job)
    state.unsettled.pop(job.id, None)
    state.blocked.pop(job.id, None)
    state.note_moments(job)


def unblock(state: SchedulerState, first: JobState) -> None:
    """Jobs that waited for this one may run, or never will: then those that waited for them neither."""
    ended = [first]
    for done in ended:  # grows on the way: chains may be longer than a stack is deep
        for name in state.dependents.pop(done.id, ()):
            unmet = state.blocked.get(name)
            if unmet is None or done.id not in unmet:
                continue
            unmet.discard(done.id)
            job = state.jobs[name]
            if done.phase is not Phase.SUCCEEDED:
                job.phase = Phase.CANCELLED
                _end(state, job)
                ended.append(job)
            elif not unmet:
                del state.blocked[name]
                state.admit(job)
