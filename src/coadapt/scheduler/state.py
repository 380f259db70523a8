"""The scheduler's whole state, changed by one method: ``apply(record)``.

``apply`` folds facts *and* decisions; it never asks a policy or a predictor, so a log folds to the
same state for ever. ``validate`` states every invariant; tests call it after each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from coadapt.errors import InvariantError
from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    CancelRequested,
    ControllerStarted,
    DecisionMade,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Placement,
    PoolLoaded,
    Record,
    ReplicasReleased,
    ResizeJob,
    SpecChanged,
    StartJob,
    Woke,
    gpus_of,
    union,
)
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.predict.history import Pool, add
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.node_state import NodeState, touches
from coadapt.scheduler.transitions import next_phase


class SchedulerState:
    """Implements ``model.snapshot.Snapshot``; everything in it follows from the log."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seq = -1
        self.jobs: dict[str, JobState] = {}
        #: Jobs that may run, in order of submission; waiting + placed = active.
        self.active: dict[str, JobState] = {}
        self.waiting: dict[str, JobState] = {}
        self.placed: dict[str, JobState] = {}
        #: Unmet dependencies of jobs that may not run yet.
        self.blocked: dict[str, set[str]] = {}
        self.dependents: dict[str, list[str]] = {}
        self.all_nodes: dict[str, NodeState] = {}
        #: Nodes that take replicas.
        self.nodes: dict[str, NodeState] = {}
        self.gpus = 0
        self.free_gpus = 0
        #: Jobs whose processes are not where their target is; in the order they became so.
        self.unsettled: dict[str, JobState] = {}
        #: What jobs that succeeded were like: a prior for those to come.
        self.pool = Pool()
        #: The policy's own memory, plain data.
        self.memory: dict[str, Any] = {}
        self.decisions = 0
        self.actions = 0
        self.decided_at: float | None = None
        #: True if something happened since the last decision that calls for one.
        self.undecided = False
        self.policy_wake_at: float | None = None
        self.starts = 0
        #: Jobs that have ended.
        self.ended = 0

    def __iter__(self) -> Iterator[JobState]:
        return iter(self.active.values())

    def fits(self, node: str, spec: JobSpec, role: str, replicas: int, free_gpus: int) -> bool:
        """Whether so many more replicas fit the node beside what is promised there."""
        demand = spec.role(role).demand
        return replicas * demand.gpus <= free_gpus and self.nodes[node].can_promise(demand, replicas)

    def apply(self, record: Record) -> None:
        """Folds one record. Costs in proportion to what it changes."""
        if record.at < self.now:
            raise InvariantError(
                f"record {record.seq} is {self.now - record.at} s older than its predecessor"
            )
        self.now, self.seq = record.at, record.seq
        _APPLY[type(record.event)](self, record.event)

    # -- nodes ---------------------------------------------------------------------------------

    def _node_joined(self, event: NodeJoined) -> None:
        name = event.node.name
        known = self.all_nodes.get(name)
        if known is None:
            self.all_nodes[name] = self.nodes[name] = known = NodeState(event.node)
        else:
            self._close(known)
            if not known.would_bear(event.node):
                known.up = False  # as it was, it is gone
                self._evict(known, lambda job: True)
            known.node, known.up, known.drained = event.node, True, False
            known.shrunk = not known.has_free(0, {})
            self.nodes = {n: s for n, s in self.all_nodes.items() if s.open}
        self.gpus += known.node.gpus
        self.free_gpus += known.node.gpus - known.promised
        self.undecided = True

    def _node_lost(self, event: NodeLost) -> None:
        node = self.all_nodes.get(event.node)
        if node is not None:
            self._close(node)
            node.up = False
            self._evict(node, lambda job: True)
            self.undecided = True

    def _node_drained(self, event: NodeDrained) -> None:
        node = self.all_nodes.get(event.node)
        if node is not None:
            self._close(node)
            node.drained = True
            # a job that may not be preempted stays; one that has only been promised its place never comes
            self._evict(node, lambda job: job.spec.preemptible or job.phase not in HOLDING)
            self.undecided = True

    def _evict(self, node: NodeState, leaves: Callable[[JobState], bool]) -> None:
        """Jobs that are on the node or are promised to it lose their target, except those on their way elsewhere
        from a node that is still there."""
        name, up = node.node.name, node.up
        for job in list(self.placed.values()):
            if (touches(job.target, name) or (not up and touches(job.held, name))) and leaves(job):
                self._set_target(job, NOWHERE)

    def _close(self, node: NodeState) -> None:
        if self.nodes.pop(node.node.name, None):
            self.gpus -= node.node.gpus
            self.free_gpus -= node.node.gpus - node.promised

    # -- jobs ----------------------------------------------------------------------------------

    def _job_submitted(self, event: JobSubmitted) -> None:
        if event.job in self.jobs:
            return  # submitted twice is submitted once
        job = JobState(event.job, event.spec, len(self.jobs), self.now)
        self.jobs[job.id] = job
        unmet = {
            a for a in event.spec.after if a not in self.jobs or self.jobs[a].phase is not Phase.SUCCEEDED
        }
        if any(a in self.jobs and self.jobs[a].phase in ENDED for a in unmet):
            job.phase, job.finished_at = Phase.CANCELLED, self.now
            self.ended += 1
            self._unblock(job)
        elif unmet:
            self.blocked[job.id] = unmet
            for name in unmet:
                self.dependents.setdefault(name, []).append(job.id)
        else:
            self._activate(job)

    def _activate(self, job: JobState) -> None:
        self.active[job.id] = self.waiting[job.id] = job
        self.undecided = True

    def _cancel_requested(self, event: CancelRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.phase in ENDED:
            return
        job.cancelling = True
        if job.phase in HOLDING:
            # nothing is promised to it any more while it is being stopped
            self._set_target(job, NOWHERE)
            self.active.pop(job.id, None)
            self.waiting.pop(job.id, None)
            self.undecided = True
        else:
            job.phase = next_phase(job.phase, "CancelRequested", job.id)
            self._ended(job)

    def _spec_changed(self, event: SpecChanged) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.phase in ENDED or not _same_demands(event.spec, job.spec):
            return
        allowed = all(role.min <= job.target.count(role.name) <= role.max for role in event.spec.roles)
        if job.target and not allowed:
            if job.phase in HOLDING and not job.spec.preemptible:
                return
            self._set_target(job, NOWHERE)
        job.spec = event.spec
        self.undecided = True

    def _job_started(self, event: JobStarted) -> None:
        job = self._current(event.job, event.attempt)
        if job is not None and job.phase is Phase.STARTING:
            job.confirm_change("JobStarted", self.now)
            self._note_settled(job)

    def _replicas_released(self, event: ReplicasReleased) -> None:
        job = self._resizing(event)
        if job is not None and job.held != event.placement:
            self._hold(job, event.placement)

    def _job_resized(self, event: JobResized) -> None:
        job = self._resizing(event)
        if job is None:
            return
        if job.held != event.placement:
            self._hold(job, event.placement)
        job.confirm_change("JobResized", self.now)
        self._note_settled(job)

    def _resizing(self, event: ReplicasReleased | JobResized) -> JobState | None:
        """The job, if this very resize is under way; one attempt may be resized many times."""
        job = self._current(event.job, event.attempt)
        if job is None or job.phase is not Phase.RESIZING:
            return None
        action = job.in_flight
        return job if isinstance(action, ResizeJob) and action.placement == event.placement else None

    def _attempt_gone(self, event: JobStopped | JobFinished) -> None:
        job = self._current(event.job, event.attempt)
        if job is None:
            return
        asked_for = job.phase is Phase.STOPPING and isinstance(event, JobStopped)
        job.end_attempt(event, self.now)
        self._hold(job, NOWHERE)
        if job.phase in ENDED:
            self._ended(job)
        elif not asked_for:
            # gone without our asking: its promise is void, the next decision places it anew
            self._set_target(job, NOWHERE)
            self.undecided = True
        self._note_settled(job)

    def _ended(self, job: JobState) -> None:
        self._end(job)
        self._unblock(job)

    def _end(self, job: JobState) -> None:
        job.finished_at = self.now
        self.ended += 1
        if job.phase is Phase.SUCCEEDED and job.teaches:
            self.pool = add(self.pool, job.as_past(self.now))
        self._set_target(job, NOWHERE)
        self.active.pop(job.id, None)
        self.waiting.pop(job.id, None)
        self.unsettled.pop(job.id, None)
        self.blocked.pop(job.id, None)
        self.undecided = True

    def _unblock(self, first: JobState) -> None:
        """Jobs that waited for this one may run, or never will: then those that waited for them neither."""
        ended = [first]
        for done in ended:  # grows on the way: chains may be longer than a stack is deep
            for name in self.dependents.pop(done.id, ()):
                unmet = self.blocked.get(name)
                if unmet is None:
                    continue
                unmet.discard(done.id)
                job = self.jobs[name]
                if done.phase is not Phase.SUCCEEDED:
                    job.phase = Phase.CANCELLED
                    self._end(job)
                    ended.append(job)
                elif not unmet:
                    del self.blocked[name]
                    self._activate(job)

    def _measured(self, event: Measured) -> None:
        job = self._current(event.job, event.attempt)
        if job is not None:
            job.measure(event.measurement, self.now)

    def _current(self, job: str, attempt: int) -> JobState | None:
        """The job, if ``attempt`` is its newest and still holds GPUs; None for a stale report."""
        state = self.jobs.get(job)
        return state if state is not None and state.attempt == attempt and state.phase in HOLDING else None

    # -- our own decisions -----------------------------------------------------------------------

    def _decision_made(self, event: DecisionMade) -> None:
        self.decisions = event.decision
        self.decided_at, self.undecided, self.policy_wake_at = self.now, False, event.wake_at
        for name, target in event.targets.items():
            self._set_target(self.jobs[name], target)
        for name, reason in event.reasons.items():
            self.jobs[name].reason = reason
        for key, value in event.memory.items():
            if value is None:
                self.memory.pop(key, None)
            else:
                self.memory[key] = value

    def _actions_issued(self, event: ActionsIssued) -> None:
        for action in event.actions:
            self.actions = action.id
            job = self.jobs[action.job]
            if isinstance(action, StartJob):
                job.attempt = action.attempt
                self._hold(job, action.placement)
                self._note_change(job)
            elif isinstance(action, ResizeJob):
                self._hold(job, union(action.before, action.placement))
                self._note_change(job)
            job.issue(action, self.now)
            self._note_settled(job)

    def _note_change(self, job: JobState) -> None:
        job.changes += 1
        if job.started_at is None:
            job.started_at = self.now

    def _set_target(self, job: JobState, target: Placement) -> None:
        if target == job.target:
            return
        for placement, sign in ((job.target, -1), (target, 1)):
            for slot in placement.slots:
                node = self.all_nodes[slot.node]
                before = node.promised
                node.promise(slot, job.spec, sign)
                if node.open:
                    self.free_gpus -= node.promised - before
        job.target, job.target_gpus, job.changed_at = target, gpus_of(target, job.spec), self.now
        if job.id in self.active:
            here, there = (self.placed, self.waiting) if target else (self.waiting, self.placed)
            there.pop(job.id, None)
            here[job.id] = job
        self._note_settled(job)

    def _hold(self, job: JobState, placement: Placement) -> None:
        for held, sign in ((job.held, -1), (placement, 1)):
            for slot in held.slots:
                self.all_nodes[slot.node].hold(slot, job.spec, sign)
        job.hold(placement, self.now)

    def _note_settled(self, job: JobState) -> None:
        if job.held == job.target and job.in_flight is None:
            self.unsettled.pop(job.id, None)
        elif job.phase not in ENDED:
            self.unsettled.setdefault(job.id, job)

    def _controller_started(self, event: ControllerStarted) -> None:
        self.starts += 1

    def _pool_loaded(self, event: PoolLoaded) -> None:
        known = self.pool
        for job in msgspec.convert(event.pool, Pool).jobs:
            known = add(known, job)
        self.pool = known

    def _woke(self, event: Woke) -> None:
        pass

    def validate(self) -> None:
        """Raises InvariantError unless everything that must hold holds."""
        from coadapt.scheduler.validate import validate

        validate(self)


def _same_demands(one: JobSpec, other: JobSpec) -> bool:
    """Whether replicas of both take the same from a node: what is held and promised stays right."""
    return [(r.name, r.demand) for r in one.roles] == [(r.name, r.demand) for r in other.roles]


_APPLY: dict[type, Callable[[SchedulerState, Any], None]] = {
    ControllerStarted: SchedulerState._controller_started,
    PoolLoaded: SchedulerState._pool_loaded,
    NodeJoined: SchedulerState._node_joined,
    NodeLost: SchedulerState._node_lost,
    NodeDrained: SchedulerState._node_drained,
    JobSubmitted: SchedulerState._job_submitted,
    CancelRequested: SchedulerState._cancel_requested,
    SpecChanged: SchedulerState._spec_changed,
    JobStarted: SchedulerState._job_started,
    ReplicasReleased: SchedulerState._replicas_released,
    JobResized: SchedulerState._job_resized,
    JobStopped: SchedulerState._attempt_gone,
    JobFinished: SchedulerState._attempt_gone,
    Measured: SchedulerState._measured,
    Woke: SchedulerState._woke,
    DecisionMade: SchedulerState._decision_made,
    ActionsIssued: SchedulerState._actions_issued,
}
