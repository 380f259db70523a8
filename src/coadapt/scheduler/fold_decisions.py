"""Our own decisions and actions, and what the controller says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.model import (
    ActionsIssued,
    ControllerStarted,
    DecisionMade,
    PoolLoaded,
    ResizeJob,
    StartJob,
    Woke,
    gpus_of,
    union,
)
from coadapt.model.snapshot import ENDED
from coadapt.model.tries import over_time
from coadapt.predict.history import Pool, add
from coadapt.scheduler.fold_requests import revive
from coadapt.scheduler.job_state import JobState

if TYPE_CHECKING:
    from coadapt.scheduler.state import SchedulerState

#: Jobs that are kept as those for whom another was stopped.
_MOST_GAINERS = 3


def decision_made(state: SchedulerState, event: DecisionMade) -> None:
    """A new target, and why."""
    state.decisions = event.decision
    state.decided_at, state.undecided, state.policy_wake_at = state.now, False, event.wake_at
    losers = [state.jobs[name] for name, target in event.targets.items() if not target]
    if losers:
        _note_losses(state, event, losers)
    for name, target in event.targets.items():
        job = state.jobs[name]
        if target and name not in state.active:
            _readmit(state, job)
        state.set_target(job, target)
    for name, reason in event.reasons.items():
        job = state.jobs[name]
        job.reason, job.reason_at, job.reason_decision = reason, state.now, event.decision
    for name, forecast in event.forecasts.items():
        job = state.jobs[name]
        job.forecast, job.forecast_at = forecast, state.now
        if job.first_forecast is None:
            job.first_forecast, job.first_forecast_at = forecast, state.now
    for key, value in event.memory.items():
        if value is None:
            state.memory.pop(key, None)
        else:
            state.memory[key] = value


def _note_losses(state: SchedulerState, event: DecisionMade, losers: list[JobState]) -> None:
    """For whom jobs lose everything they were promised."""
    gains = []
    for name, target in event.targets.items():
        job = state.jobs[name]
        gained = gpus_of(target, job.spec) - job.target_gpus
        if gained > 0:
            gains.append((gained, -job.order, name))
    largest = tuple((name, gained) for gained, _, name in sorted(gains, reverse=True)[:_MOST_GAINERS])
    for job in losers:
        job.lost_to = largest


def _readmit(state: SchedulerState, job: JobState) -> None:
    """A decision of an older coadapt, which tried failed jobs again at once and knew no crash loops: what it decided holds."""
    if job.phase in ENDED:
        revive(state, job)
    job.retry_at = None
    state.note_moments(job)
    state.admit(job)
    state.undecided = False


def actions_issued(state: SchedulerState, event: ActionsIssued) -> None:
    """Actions were sent to the executor."""
    for action in event.actions:
        state.actions = action.id
        job = state.jobs[action.job]
        if isinstance(action, StartJob):
            job.begin_attempt(action.attempt)
            state.hold(job, action.placement)
            _note_change(state, job)
        elif isinstance(action, ResizeJob):
            job.resized_from = gpus_of(action.before, job.spec)
            state.hold(job, union(action.before, action.placement))
            _note_change(state, job)
        elif action.why == "time-limit":
            job.stopped_for = over_time(action.attempt, job.spec.time_limit_s or 0.0, state.now)
            state.withdraw(job)
        job.issue(action, state.now)
        state.note_moments(job)
        state.note_settled(job)


def _note_change(state: SchedulerState, job: JobState) -> None:
    job.changes += 1
    if job.started_at is None:
        job.started_at = state.now


def controller_started(state: SchedulerState, event: ControllerStarted) -> None:
    """Counted; what it means for warm starts is the scheduler's business."""
    state.starts += 1


def pool_loaded(state: SchedulerState, event: PoolLoaded) -> None:
    """Past jobs of another log."""
    known = state.pool
    for job in msgspec.convert(event.pool, Pool).jobs:
        known = add(known, job)
    state.pool = known


def woke(state: SchedulerState, event: Woke) -> None:
    """Jobs that have waited long enough after a failure may run again."""
    for name in state.retries.pop(state.now) if state.retries else ():
        job = state.jobs[name]
        job.retry_at = None
        state.admit(job)


APPLY: dict[type, Callable[[Any, Any], None]] = {
    DecisionMade: decision_made,
    ActionsIssued: actions_issued,
    ControllerStarted: controller_started,
    PoolLoaded: pool_loaded,
    Woke: woke,
}
