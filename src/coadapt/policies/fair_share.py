"""Fair shares between users or teams: dominant resource fairness with weights, as in YARN and Mesos.

Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011). With u_er the amount of resource r that entity e (a team, else
a user) has, c_r the cluster's and w_e its weight, its dominant share is

    s_e = max_r u_er / c_r / w_e          r over GPUs, CPU cores, memory

Whenever GPUs are free, the entity with the least s_e is offered them first and starts its next job that fits, by
priority and submission, at the requested size; an entity none of whose jobs fits is passed over. Nothing is preempted.

``preempt=True`` (as in YARN's fair scheduler): an entity whose next job would leave it within its fair share
w_e / sum of w over entities with jobs is starving; for that job the newest jobs of entities above their own fair
share are stopped, unless they have run for less than ``min_run_s``. All that is needed is taken, or nothing.

Where we deviate: victims are counted by GPUs only, and a preemption is not held back by a timeout of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import inf, nextafter
from typing import ClassVar

from coadapt.errors import InputError
from coadapt.model import Allocation, JobSpec, Reason, Resources
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed
from coadapt.policies._budget import Budget

_EPS = 1e-9


class FairSharePolicy(BasePolicy):
    """Dominant resource fairness between teams or users.

    Args:
        weights: weights by team or user; 1 unless named.
        by: "team" (the user where a job has no team) or "user".
        preempt: stop jobs of those above their fair share for those below it.
        min_run_s: seconds that a job runs before it may be preempted.
    """

    name = "fair-share"
    aliases = ("drf",)
    order = 40
    help = (
        "Fair shares between users or teams: dominant resource fairness with weights, as in YARN and Mesos."
    )
    option_help: ClassVar[dict[str, str]] = {
        "weights": "weights of teams or users, for example prod:2,research:1; default 1",
        "by": "what gets fair shares: team or user",
        "preempt": "preempt jobs of those above their fair share for those below it",
        "min_run_s": "minimum seconds a job runs before it may be preempted",
    }
    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        by: str = "team",
        preempt: bool = False,
        min_run_s: float = 600.0,
    ) -> None:
        self.weights = dict(weights or {})
        bad = [name for name, weight in self.weights.items() if not 0 < weight < inf]
        if bad:
            raise InputError(f"weight {self.weights[bad[0]]} of {bad[0]!r} must be positive and finite")
        if by not in ("team", "user"):
            raise InputError(f"by={by!r} is invalid; shares are by team or by user")
        self.by, self.preempt, self.min_run_s = by, preempt, min_run_s

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Offers the free GPUs of ``snapshot`` to the entity with the least dominant share first.

        ``curves``, ``memory`` and ``rng`` are not used.
        """
        if not (snapshot.free_gpus or self.preempt) and all(
            gpus_needed(job.spec) for job in snapshot.waiting.values()
        ):
            return Proposal()
        shares = _Shares(self, snapshot)
        started, reasons = shares.fill()
        allocations: dict[str, Allocation] = {}
        wake_at = None
        if self.preempt:
            allocations, wake_at = shares.take_back(reasons)
        return Proposal(allocations=allocations | started, reasons=reasons, wake_at=wake_at)

    def entity(self, spec: JobSpec) -> str:
        """Returns the team or user whose share the job counts against."""
        return (spec.team or spec.user) if self.by == "team" else spec.user


class _Shares:
    """One decision's book-keeping."""

    def __init__(self, policy: FairSharePolicy, snapshot: Snapshot) -> None:
        self.policy, self.snapshot = policy, snapshot
        self.budget = Budget(snapshot)
        self.used: dict[str, list[float]] = {}
        self.queues: dict[str, list[JobView]] = {}
        for job in snapshot.placed.values():
            self._use(job, 1)
        for job in sorted(snapshot.waiting.values(), key=lambda j: (-j.spec.priority, j.order)):
            entity = policy.entity(job.spec)
            self.used.setdefault(entity, [0.0, 0.0, 0.0])
            self.queues.setdefault(entity, []).append(job)
        self._sum_of_weights = sum(map(self._weight, self.used))

    def fill(self) -> tuple[dict[str, Allocation], dict[str, Reason]]:
        """Gives what is free to the poorest first."""
        started: dict[str, Allocation] = {}
        reasons: dict[str, Reason] = {}
        heads = dict.fromkeys(self.queues, 0)
        heap = [(self._share(e), queue[0].order, e) for e, queue in self.queues.items()]
        heapify(heap)
        while heap:
            share, order, entity = heap[0]
            queue, at = self.queues[entity], heads[entity]
            gpu_type = None
            # what does not fit now will not fit in this decision: the budget only shrinks
            while at < len(queue) and (gpu_type := self._room_for(queue[at])) is None:
                at += 1
            heads[entity] = at + 1
            if gpu_type is None:
                heappop(heap)
                continue
            job = queue[at]
            self._start(job, gpu_type, started, reasons, share)
            heapreplace(heap, (self._share(entity), order, entity))
        self.queues = {
            entity: left
            for entity, queue in self.queues.items()
            if (left := [job for job in queue if job.id not in started])
        }
        return started, reasons

    def take_back(self, reasons: dict[str, Reason]) -> tuple[dict[str, Allocation], float | None]:
        """Stops jobs of entities above their share for those that starve; and when to look again."""
        changes: dict[str, Allocation] = {}
        wake_at = inf
        starving = [(self._share(e), queue[0].order, e) for e, queue in self.queues.items()]
        heapify(starving)
        while starving:
            _, _, entity = heappop(starving)
            job = self.queues[entity][0]
            demand = _demand(job.spec)
            own = self.budget.dominant_share(demand) / self._weight(entity)
            if self._share(entity) + own > self._fair(entity) + _EPS:
                continue
            victims, later = self._victims(job, changes)
            wake_at = min(wake_at, later)
            for victim in victims:
                changes[victim.id] = Allocation()
                self.budget.give_back(victim)
                self._use(victim, -1)
                reasons[victim.id] = Reason(
                    code="preempted",
                    text=f"Waiting. {self.policy.entity(victim.spec)!r} is above its fair share.",
                )
            gpu_type = self._room_for(job)
            if victims and gpu_type is not None:
                self._start(job, gpu_type, changes, reasons, self._share(entity))
                self.queues[entity].pop(0)
                if self.queues[entity]:
                    heappush(starving, (self._share(entity), job.order, entity))
        if wake_at == inf:
            return changes, None
        return changes, max(wake_at, nextafter(self.snapshot.now, inf))

    def _victims(self, job: JobView, changes: Mapping[str, Allocation]) -> tuple[list[JobView], float]:
        """Jobs whose GPUs, with what is free, are enough; else none, and when the next one may be stopped."""
        now, spec = self.snapshot.now, job.spec
        later = inf
        for kind in spec.gpu_types or self.budget.gpus:
            if self.budget.largest.get(kind, 0) < spec.gpus_per_replica:
                continue
            missing = gpus_needed(spec) - self.budget.gpus[kind]
            chosen: list[JobView] = []
            lost: dict[str, float] = {}
            for victim in sorted(
                self.snapshot.placed.values(), key=lambda j: (-(j.changed_at or 0.0), -j.order)
            ):
                if missing <= 0:
                    break
                entity = self.policy.entity(victim.spec)
                if victim.id in changes or not victim.spec.preemptible or victim.target.gpu_type != kind:
                    continue
                if self._share(entity) - lost.get(entity, 0.0) <= self._fair(entity) + _EPS:
                    continue
                free_at = (victim.changed_at or 0.0) + self.policy.min_run_s
                if free_at > now:
                    later = min(later, free_at)
                    continue
                chosen.append(victim)
                missing -= victim.target_gpus
                share = self.budget.dominant_share(_demand(victim.spec)) / self._weight(entity)
                lost[entity] = lost.get(entity, 0.0) + share
            if missing <= 0:
                return chosen, inf
        return [], later

    def _start(
        self,
        job: JobView,
        gpu_type: str,
        started: dict[str, Allocation],
        reasons: dict[str, Reason],
        share: float,
    ) -> None:
        for role, count in _counts(job.spec):
            self.budget.take(role, count, gpu_type)
        self._add(self.policy.entity(job.spec), _demand(job.spec), 1)
        started[job.id] = as_requested(job.spec, gpu_type)
        entity, fair = self.policy.entity(job.spec), self._fair(self.policy.entity(job.spec))
        text = f"Running. {entity!r} has a share of {share:.3f}; its fair share is {fair:.3f}."
        reasons[job.id] = Reason(code="fair-share", text=text, numbers={"share": share, "fair": fair})

    def _room_for(self, job: JobView) -> str | None:
        counts = [
            (role, job.spec.requested if at == 0 else role.min) for at, role in enumerate(job.spec.roles)
        ]
        return self.budget.type_for(job.spec, counts)

    def _use(self, job: JobView, sign: int) -> None:
        entity = self.policy.entity(job.spec)
        for slot in job.target.slots:
            demand = job.spec.role(slot.role).demand
            self._add(entity, demand, sign * slot.replicas)

    def _add(self, entity: str, demand: Resources, times: int) -> None:
        used = self.used.setdefault(entity, [0.0, 0.0, 0.0])
        used[0] += times * demand.gpus
        used[1] += times * demand.cpus
        used[2] += times * demand.memory_bytes

    def _share(self, entity: str) -> float:
        """Dominant share divided by weight."""
        gpus, cpus, memory_bytes = self.used[entity]
        total = Resources(gpus=round(gpus), cpus=cpus, memory_bytes=memory_bytes)
        return self.budget.dominant_share(total) / self._weight(entity)

    def _weight(self, entity: str) -> float:
        return self.policy.weights.get(entity, 1.0)

    def _fair(self, entity: str) -> float:
        """The fair share in the unit of ``_share``: the same for all, since weights are divided out."""
        return 1.0 / self._sum_of_weights


def _counts(spec: JobSpec) -> list[tuple[Resources, int]]:
    return [(role.demand, spec.requested if at == 0 else role.min) for at, role in enumerate(spec.roles)]


def _demand(spec: JobSpec) -> Resources:
    """Resources of the job at its requested size."""
    counts = _counts(spec)
    return Resources(
        gpus=sum(demand.gpus * n for demand, n in counts),
        cpus=sum(demand.cpus * n for demand, n in counts),
        memory_bytes=sum(demand.memory_bytes * n for demand, n in counts),
    )
