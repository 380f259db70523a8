"""The scheduler's whole state, changed by one method: ``apply(record)``.

``apply`` folds facts *and* decisions; it never asks a policy or a predictor, so a log always folds to the same state.
The functions that fold each event are in ``fold``; this module holds the state they share. ``validate`` checks every
invariant; tests call it after each event. ``Moments`` holds at most one time per job at which the job is due, the
earliest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from coadapt.errors import InvariantError
from coadapt.model import NOWHERE, JobSpec, Placement, Record, gpus_of
from coadapt.model.snapshot import ENDED, HOLDING
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.scheduler.state import fold
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import NodeState


class Moments:
    """A heap with one entry that counts per job; entries that no longer do are dropped when they come up."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, job: str, at: float | None) -> None:
        """From now on this is the job's moment; None: it has none."""
        if self._at.get(job) == at:
            return
        if at is None:
            del self._at[job]
        else:
            self._at[job] = at
            heapq.heappush(self._heap, (at, job))

    def of(self, job: str) -> float | None:
        """Returns the moment of the job."""
        return self._at.get(job)

    @property
    def next(self) -> float | None:
        """Returns the earliest moment of any job."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now: float) -> list[str]:
        """Jobs whose moment has come, in order of their moments; they have none any more."""
        due: list[str] = []
        while (at := self.next) is not None and at <= now:
            _, job = heapq.heappop(self._heap)
            del self._at[job]
            due.append(job)
        return due

    def items(self) -> Iterable[tuple[str, float]]:
        """Jobs and their moments, in no order."""
        return self._at.items()

    def __len__(self) -> int:
        return len(self._at)


_APPLY: dict[type, Callable[[Any, Any], None]] = {
    **fold.APPLY_NODES,
    **fold.APPLY_REQUESTS,
    **fold.APPLY_ATTEMPTS,
    **fold.APPLY_DECISIONS,
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
        #: Priority up to which jobs of a user or team come before those of others, where an administrator granted one.
        self.priorities: dict[str, int] = {}
        #: Most unfinished jobs with a deadline of a user or team, where that is limited.
        self.deadlines: dict[str, int] = {}
        #: Users who may submit jobs of a team, where an administrator listed them.
        self.members: dict[str, tuple[str, ...]] = {}
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
        """Whether ``replicas`` more replicas of ``role`` of ``spec`` fit ``node`` beside what is promised there.

        ``free_gpus`` is the number of GPUs that the caller takes to be free on the node.
        """
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
        """Raises InvariantError if an invariant of the state is violated."""
        from coadapt.scheduler.state.validate import validate

        validate(self)

    # -- for the folds only --------------------------------------------------------------------------

    def current(self, job: str, attempt: int) -> JobState | None:
        """Returns the job if ``attempt`` is its newest and still holds GPUs; None for a stale report."""
        state = self.jobs.get(job)
        return state if state is not None and state.attempt == attempt and state.phase in HOLDING else None

    def admit(self, job: JobState) -> None:
        """Makes the job active unless something else holds it back."""
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

    def hold(self, job: JobState, placement: Placement, at: float | None = None) -> None:
        """Records that the job's processes hold ``placement`` from now on, or since ``at``."""
        for held, sign in ((job.held, -1), (placement, 1)):
            for slot in held.slots:
                self.all_nodes[slot.node].hold(slot, job.spec, sign)
        job.hold(placement, self.now if at is None else at)

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
