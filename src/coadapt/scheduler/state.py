"""The scheduler's whole state, changed by one method: ``apply(record)``.

``apply`` folds facts *and* decisions; it never asks a policy or a predictor, so a log folds to the
same state for ever. What each event means stands in ``fold_nodes``, ``fold_requests``, ``fold_attempts`` and
``fold_decisions``; here is what they share. ``validate`` states every invariant; tests call it after each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from coadapt.errors import InvariantError
from coadapt.model import NOWHERE, JobSpec, Placement, Record, gpus_of
from coadapt.model.snapshot import ENDED, HOLDING
from coadapt.predict.history import Pool
from coadapt.scheduler import fold_attempts, fold_decisions, fold_nodes, fold_requests
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.moments import Moments
from coadapt.scheduler.node_state import NodeState

_APPLY: dict[type, Callable[[Any, Any], None]] = {
    **fold_nodes.APPLY,
    **fold_requests.APPLY,
    **fold_attempts.APPLY,
    **fold_decisions.APPLY,
}


class SchedulerState:
    """Implements ``model.snapshot.Snapshot``; everything in it follows from the log."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seq = -1
        self.jobs: dict[str, JobState] = {}
        #: Jobs that may run, in the order they became so; waiting + placed = active.
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
        #: Most GPUs of a user or team, where an administrator set one.
        self.quotas: dict[str, int] = {}
        #: Jobs whose processes are not where their target is; in the order they became so.
        self.unsettled: dict[str, JobState] = {}
        #: When jobs may be tried again after a failure, and when running ones reach their time limit.
        self.retries = Moments()
        self.limits = Moments()
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

    def validate(self) -> None:
        """Raises InvariantError unless everything that must hold holds."""
        from coadapt.scheduler.validate import validate

        validate(self)

    # -- for the folds only --------------------------------------------------------------------------

    def current(self, job: str, attempt: int) -> JobState | None:
        """The job, if ``attempt`` is its newest and still holds GPUs; None for a stale report."""
        state = self.jobs.get(job)
        return state if state is not None and state.attempt == attempt and state.phase in HOLDING else None

    def admit(self, job: JobState) -> None:
        """The job may run from now on, if nothing else speaks against it."""
        if job.free_to_run and job.id not in self.blocked and job.id not in self.active:
            self.active[job.id] = job
            (self.placed if job.target else self.waiting)[job.id] = job
            self.undecided = True

    def withdraw(self, job: JobState) -> None:
        """Nothing is promised to the job any more, and nothing will be until it is admitted again."""
        self.set_target(job, NOWHERE)
        self.active.pop(job.id, None)
        self.waiting.pop(job.id, None)
        self.undecided = True

    def set_target(self, job: JobState, target: Placement) -> None:
        """A decision, or the loss of what was decided."""
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
        self.note_settled(job)

    def hold(self, job: JobState, placement: Placement) -> None:
        """The job's processes hold ``placement`` from now on."""
        for held, sign in ((job.held, -1), (placement, 1)):
            for slot in held.slots:
                self.all_nodes[slot.node].hold(slot, job.spec, sign)
        job.hold(placement, self.now)

    def note_settled(self, job: JobState) -> None:
        """Keeps ``unsettled`` right after a change of the job."""
        if job.held == job.target and job.in_flight is None:
            self.unsettled.pop(job.id, None)
        elif job.phase not in ENDED:
            self.unsettled.setdefault(job.id, job)

    def note_moments(self, job: JobState) -> None:
        """Keeps ``retries`` and ``limits`` right after a change of the job."""
        if self.retries or job.retry_at is not None:
            self.retries.set(job.id, job.retry_at)
        if self.limits or job.spec.time_limit_s is not None:
            self.limits.set(job.id, job.limit_at)
