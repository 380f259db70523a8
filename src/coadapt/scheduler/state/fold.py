"""How each kind of record changes the state; one function per event type.

In order: requests of users (submit, cancel, pause, resume, retry, change) and quotas of administrators; the end of a
job, and its effect on jobs that depend on it; reports of executors and agents (attempts start, change, hang, end;
measurements); the scheduler's own decisions and actions, and records of the controller; nodes that join, are lost,
drained and opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    CancelRequested,
    ClusterRestored,
    CodeFound,
    CodeMissing,
    ControllerStarted,
    DecisionMade,
    JobFinished,
    JobHung,
    JobQuarantined,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    PoolLoaded,
    QuotaSet,
    ReplicasReleased,
    ReportsMerged,
    ResizeJob,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    StartJob,
    Woke,
    gpus_of,
    union,
)
from coadapt.model.events import MOST_REASON
from coadapt.model.measurement import accepted_part
from coadapt.model.retry import hung, over_time
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.prediction.remaining.past_jobs import Pool, add
from coadapt.scheduler.state import report_merge
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import NodeState, touches
from coadapt.scheduler.state.transitions import next_phase

if TYPE_CHECKING:
    from coadapt.scheduler.state.state import SchedulerState


def job_submitted(state: SchedulerState, event: JobSubmitted) -> None:
    """Adds the job; it may run once all jobs it depends on have succeeded."""
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
    """Ends the job at once, or once its processes are gone."""
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
    """Puts the job on hold until it is resumed, also one that may not be preempted, since its user asked for it."""
    job = state.jobs.get(event.job)
    if job is not None and job.phase not in ENDED and not job.cancelling and not job.on_hold:
        job.on_hold = True
        state.withdraw(job)


def resume_requested(state: SchedulerState, event: ResumeRequested) -> None:
    """Lets the job run again unless something else holds it back."""
    job = state.jobs.get(event.job)
    if job is not None and job.on_hold:
        job.on_hold = False
        state.admit(job)


def retry_requested(state: SchedulerState, event: RetryRequested) -> None:
    """A failed or cancelled job waits again, and a quarantined one is released. One whose dependencies will never be met stays as it is, and so do jobs
    that were cancelled because of it."""
    job = state.jobs.get(event.job)
    if job is not None and job.quarantine is not None and job.phase not in ENDED:
        job.leave_quarantine()
        state.admit(job)
        return
    if job is None or job.phase not in (Phase.FAILED, Phase.CANCELLED):
        return
    unmet = _unmet(state, job.spec)
    if not _doomed(state, unmet):
        revive(state, job)
        _await(state, job, unmet)


def revive(state: SchedulerState, job: JobState) -> None:
    """Makes a job that has ended active again."""
    job.revive(state.now)
    state.ended -= 1


def spec_changed(state: SchedulerState, event: SpecChanged) -> None:
    """Changes the fields of a specification that a user may change at any time; voids a target that it no longer allows."""
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
    """Sets a quota, budgets and members for the decisions and submissions from now on."""
    granted: tuple[tuple[dict[str, Any], Any], ...] = (
        (state.quotas, event.gpus),
        (state.priorities, event.priority or None),
        (state.deadlines, event.deadlines),
        (state.members, event.members),
    )
    for by_group, amount in granted:
        if amount is None:
            by_group.pop(event.group, None)
        else:
            by_group[event.group] = amount
    state.undecided = True


APPLY_REQUESTS: dict[type, Callable[[Any, Any], None]] = {
    JobSubmitted: job_submitted,
    CancelRequested: cancel_requested,
    PauseRequested: pause_requested,
    ResumeRequested: resume_requested,
    RetryRequested: retry_requested,
    SpecChanged: spec_changed,
    QuotaSet: quota_set,
}


def ended(state: SchedulerState, job: JobState) -> None:
    """Handles the end of a job, whose phase is final."""
    _end(state, job)
    unblock(state, job)


def _end(state: SchedulerState, job: JobState) -> None:
    state.ended += 1
    if job.phase is Phase.SUCCEEDED and job.teaches:
        # figures that no table can take teach nothing
        with suppress(ArithmeticError, ValueError):
            state.pool = add(state.pool, job.as_past(state.now))
    job.end(state.now)
    state.withdraw(job)
    state.unsettled.pop(job.id, None)
    state.blocked.pop(job.id, None)
    state.note_moments(job)


def unblock(state: SchedulerState, first: JobState) -> None:
    """Updates the jobs that waited for ``first``.

    If it succeeded, those that wait for nothing else are admitted; else they are cancelled, and so are the jobs that
    wait for them.
    """
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


def job_started(state: SchedulerState, event: JobStarted) -> None:
    """Records that all replicas of the attempt train."""
    job = state.current(event.job, event.attempt)
    if job is not None and job.phase is Phase.STARTING:
        _confirm(state, job, "JobStarted")


def replicas_released(state: SchedulerState, event: ReplicasReleased) -> None:
    """Frees the slots that a resize leaves."""
    job = _resizing(state, event)
    if job is not None and job.held != event.placement:
        state.hold(job, event.placement)


def job_resized(state: SchedulerState, event: JobResized) -> None:
    """Records that all replicas of the new placement train."""
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
    """Marks the attempt to be stopped, so that its end counts as a failure; one that is being stopped already just ends."""
    job = state.current(event.job, event.attempt)
    if job is None or job.phase is Phase.STOPPING or job.cancelling or job.stopped_for is not None:
        return
    job.stopped_for = hung(event, state.now)
    state.withdraw(job)


def attempt_gone(state: SchedulerState, event: JobStopped | JobFinished) -> None:
    """Records that the last process of an attempt is gone."""
    job = state.current(event.job, event.attempt)
    if job is None:
        return
    asked_for = job.phase is Phase.STOPPING and isinstance(event, JobStopped)
    at = job.end_of(event.ended_at, state.now)
    job.end_attempt(event, at)
    state.hold(job, NOWHERE, at)
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
    """Records the report of an agent, as far as it is plausible; one that no table can take quarantines its job."""
    job = state.current(event.job, event.attempt)
    measurement = accepted_part(event.measurement)
    if job is None or measurement is None or job.quarantine is not None:
        return
    try:
        job.measure(measurement, event.attempt, state.now)
    except (ArithmeticError, ValueError) as error:
        quarantine(state, job, f"its report cannot be evaluated ({type(error).__name__}: {error})")
        return
    if setup_s := measurement.overheads_s.get("setup"):
        job.note_setup(setup_s)


def quarantine(state: SchedulerState, job: JobState, reason: str) -> None:
    """Leaves the job out of decisions until it is released: it is stopped and holds nothing, as one that was paused."""
    if job.quarantine is None and job.phase not in ENDED:
        job.quarantine = reason[:MOST_REASON]
        state.withdraw(job)


def job_quarantined(state: SchedulerState, event: JobQuarantined) -> None:
    """Quarantines the job."""
    job = state.jobs.get(event.job)
    if job is not None:
        quarantine(state, job, event.reason)


def reports_merged(state: SchedulerState, event: ReportsMerged) -> None:
    """Sets what the reports that it stands for changed."""
    job = state.current(event.job, event.attempt)
    if job is not None:
        report_merge.apply(job, event.changes)


def code_missing(state: SchedulerState, event: CodeMissing) -> None:
    """Leaves a job that waits out of decisions until its code is there."""
    job = state.jobs.get(event.job)
    if job is not None and job.phase not in ENDED and job.phase not in HOLDING and not job.missing_code:
        job.missing_code = True
        state.withdraw(job)


def code_found(state: SchedulerState, event: CodeFound) -> None:
    """Lets the job run again unless something else holds it back."""
    job = state.jobs.get(event.job)
    if job is not None and job.missing_code:
        job.missing_code = False
        state.admit(job)


APPLY_ATTEMPTS: dict[type, Callable[[Any, Any], None]] = {
    JobStarted: job_started,
    ReplicasReleased: replicas_released,
    JobResized: job_resized,
    JobHung: job_hung,
    JobStopped: attempt_gone,
    JobFinished: attempt_gone,
    JobQuarantined: job_quarantined,
    CodeMissing: code_missing,
    CodeFound: code_found,
    Measured: measured,
    ReportsMerged: reports_merged,
}

#: Jobs that are kept as those for whom another was stopped.
_MOST_GAINERS = 3


def decision_made(state: SchedulerState, event: DecisionMade) -> None:
    """Records the targets, reasons and memory of a decision."""
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
    for name, why in event.quarantined.items():
        quarantine(state, state.jobs[name], why)
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
    """Records that actions were sent to the executor."""
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
    """Counts the start of a controller; the scheduler drops warm starts."""
    state.starts += 1


def pool_loaded(state: SchedulerState, event: PoolLoaded) -> None:
    """Adds past jobs of another log to the pool."""
    known = state.pool
    for job in msgspec.convert(event.pool, Pool).jobs:
        known = add(known, job)
    state.pool = known


def woke(state: SchedulerState, event: Woke) -> None:
    """Readmits jobs whose wait after a failure is over."""
    for name in state.retries.pop(state.now) if state.retries else ():
        job = state.jobs[name]
        job.retry_at = None
        state.admit(job)


def cluster_restored(state: SchedulerState, event: ClusterRestored) -> None:
    """Ends the attempts that ran where the backup was made, and forgets the nodes of that home."""
    for job in list(state.jobs.values()):
        if job.phase in HOLDING:
            attempt_gone(
                state,
                JobStopped(job=job.id, attempt=job.attempt, cause="restored", ended_at=event.made_at),
            )
        state.set_target(job, NOWHERE)
    for node in list(state.all_nodes.values()):
        _close(state, node)
    state.all_nodes = {}
    state.undecided = True


APPLY_DECISIONS: dict[type, Callable[[Any, Any], None]] = {
    DecisionMade: decision_made,
    ActionsIssued: actions_issued,
    ControllerStarted: controller_started,
    ClusterRestored: cluster_restored,
    PoolLoaded: pool_loaded,
    Woke: woke,
}


def node_joined(state: SchedulerState, event: NodeJoined) -> None:
    """Adds a node, new or returning, perhaps with other resources. A drained node stays drained until an administrator
    opens it.
    """
    name = event.node.name
    known = state.all_nodes.get(name)
    if known is None:
        known = state.all_nodes[name] = NodeState(event.node)
    else:
        _close(state, known)
        if not known.would_bear(event.node):
            known.up = False  # as it was, it is gone
            _evict(state, known, lambda job: True)
        known.node, known.up = event.node, True
        known.shrunk = not known.has_free(0, {})
    known.until = event.until
    if known.open:
        _open(state, known)
    state.undecided = True


def node_lost(state: SchedulerState, event: NodeLost) -> None:
    """Closes a lost node; what was held there stays held until the end of its attempts is confirmed."""
    node = state.all_nodes.get(event.node)
    if node is not None:
        _close(state, node)
        node.up = False
        _evict(state, node, lambda job: True)
        state.undecided = True


def node_drained(state: SchedulerState, event: NodeDrained) -> None:
    """Closes the node to new replicas."""
    node = state.all_nodes.get(event.node)
    if node is not None:
        _close(state, node)
        node.drained = True
        # a job that may not be preempted stays; one that has only been promised its place never comes
        _evict(state, node, lambda job: job.spec.preemptible or job.phase not in HOLDING)
        state.undecided = True


def node_opened(state: SchedulerState, event: NodeOpened) -> None:
    """A drained node takes replicas again, if it is there; a lost one has to join."""
    node = state.all_nodes.get(event.node)
    if node is not None and node.drained:
        node.drained = False
        if node.up:
            _open(state, node)


def _open(state: SchedulerState, node: NodeState) -> None:
    # in the order of the cluster, whatever became of its nodes
    state.nodes = {name: each for name, each in state.all_nodes.items() if each.open}
    state.gpus += node.node.gpus
    state.free_gpus += node.node.gpus - node.promised
    state.undecided = True


def _close(state: SchedulerState, node: NodeState) -> None:
    if state.nodes.pop(node.node.name, None):
        state.gpus -= node.node.gpus
        state.free_gpus -= node.node.gpus - node.promised


def _evict(state: SchedulerState, node: NodeState, leaves: Callable[[JobState], bool]) -> None:
    """Jobs that are on the node or are promised to it lose their target, except those on their way elsewhere
    from a node that is still there."""
    name, up = node.node.name, node.up
    for job in list(state.placed.values()):
        if (touches(job.target, name) or (not up and touches(job.held, name))) and leaves(job):
            state.set_target(job, NOWHERE)


APPLY_NODES: dict[type, Callable[[Any, Any], None]] = {
    NodeJoined: node_joined,
    NodeLost: node_lost,
    NodeDrained: node_drained,
    NodeOpened: node_opened,
}
