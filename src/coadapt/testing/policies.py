"""Conformance suite of policies.

The suite runs the policy on small seeded workloads through the real scheduler and a simulated cluster with faults,
and checks every proposal on its way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from coadapt.configure import Curve
from coadapt.model import (
    NOWHERE,
    Allocation,
    AnyEvent,
    CancelRequested,
    Cluster,
    JobSpec,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    Record,
    Resources,
    Role,
    encode,
    parse_cluster,
)
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.plugins import PLACERS
from coadapt.policies import Curves, Memory, Policy, Proposal, Rng
from coadapt.scheduler import SchedulerState
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog

Submission = tuple[float, str, JobSpec]


class PolicyConformance:
    """Conformance suite of a policy: subclass it and implement ``make``."""

    #: False for a policy whose warm start may change what it finds (a search that begins from the last result).
    same_without_warm_start = True
    #: False for a policy that decides about workers only.
    knows_roles = True

    def make(self) -> Policy:
        """A new instance; all of them alike."""
        raise NotImplementedError

    def test_proposals_keep_the_contract(self) -> None:
        """Proposals name active jobs and changes only, respect bounds, use plain memory, and leave protected jobs alone."""
        for seed in range(6):
            for interval_s in (None, 15.0):
                inspector = Inspector(self.make())
                self._run(inspector, seed, interval_s)
                assert inspector.calls > 0

    def test_same_workload_gives_the_same_log(self) -> None:
        """A policy is pure: two instances, one log, byte for byte."""
        for seed in range(3):
            assert self._run(self.make(), seed, None) == self._run(self.make(), seed, None)

    def test_capacity_is_kept_after_every_record(self) -> None:
        """No target and no process is ever more than a node has."""
        for seed in range(3):
            state = SchedulerState()
            for data in self._run(self.make(), seed, 15.0):
                state.apply(msgspec.json.decode(data, type=Record))
                state.validate()

    def test_decision_without_a_warm_start_is_the_same(self) -> None:
        """State in the process is lost with it; a policy that claims so decides the same without it."""
        if not self.same_without_warm_start:
            return
        for seed in range(4):
            self._run(Inspector(self.make(), cold=True), seed, None)

    def test_nothing_to_decide_is_decided(self) -> None:
        """An empty snapshot, a cluster without jobs, and jobs without a cluster give no changes."""
        nodes: list[AnyEvent] = [NodeJoined(node=node) for node in parse_cluster("2x2").nodes]
        jobs: list[AnyEvent] = [JobSubmitted(job="a", spec=JobSpec(name="a", duration_s=1.0))]
        for events in ([], nodes, jobs):
            state = SchedulerState()
            for seq, event in enumerate(events):
                state.apply(Record(seq=seq, at=0.0, event=event))
            curves: dict[str, Curve] = {}
            proposal = Inspector(self.make()).decide(
                state, curves, Memory(), lambda: np.random.default_rng(0)
            )
            assert not proposal.placements
            assert not proposal.allocations

    def _run(self, policy: Policy, seed: int, interval_s: float | None) -> list[bytes]:
        log, cluster = MemoryLog(), parse_cluster("3x4")
        placer = PLACERS.make(policy.placer)
        setting = Setting(
            interval_s=interval_s,
            change_cost=constant(5.0),
            stop_s=2.0,
            seed=seed,
            events=sample_faults(seed, cluster),
        )
        simulate(
            sample_jobs(seed, knows_roles=self.knows_roles),
            cluster,
            policy,
            log,
            placer=placer,
            setting=setting,
        )
        return [encode(record) for record in log.read()]


class Inspector:
    """Passes everything to a policy and checks what it proposes."""

    def __init__(self, policy: Policy, *, cold: bool = False) -> None:
        self.policy, self.placer = policy, policy.placer
        self.adapts_batch, self.chooses_size = policy.adapts_batch, policy.chooses_size
        self.cold, self.calls = cold, 0

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Passes ``snapshot``, ``curves``, ``memory`` and ``rng`` to the policy and checks its proposal."""
        self.calls += 1
        before = _seen(snapshot, memory)
        without = self.policy.decide(snapshot, curves, Memory(kept=memory.kept), rng) if self.cold else None
        proposal = self.policy.decide(snapshot, curves, memory, rng)
        assert _seen(snapshot, memory) == before, "the policy changed what it may only read"
        if without is not None:
            for field in ("allocations", "placements", "memory", "wake_at"):
                assert getattr(without, field) == getattr(proposal, field), (
                    f"{field} differ without a warm start"
                )
        _check(snapshot, proposal)
        return proposal


def _seen(snapshot: Snapshot, memory: Memory) -> tuple[Any, ...]:
    jobs = [(job.id, job.phase, job.target, job.held) for job in snapshot]
    return jobs, snapshot.gpus, snapshot.free_gpus, msgspec.json.encode(dict(memory.kept))


def _check(snapshot: Snapshot, proposal: Proposal) -> None:
    active = snapshot.active
    taken = {slot.node for placement in proposal.placements.values() for slot in placement.slots}
    assert not proposal.allocations.keys() & proposal.placements.keys(), (
        "a job is both placed and to be placed"
    )
    for name in {**proposal.allocations, **proposal.placements, **proposal.reasons}:
        assert name in active, f"{name} may not run"
    for name, allocation in proposal.allocations.items():
        _check_size(active[name], allocation)
        # a job may be named with what it has where a placement takes its nodes: it is placed again
        moves = any(slot.node in taken for slot in active[name].target.slots)
        assert moves or _differs(active[name], allocation), f"{name} was proposed what it has"
    for name, placement in proposal.placements.items():
        assert placement != active[name].target, f"{name} was proposed what it has"
        if placement:
            for role in active[name].spec.roles:
                assert role.min <= placement.count(role.name) <= role.max, f"{name} was proposed {placement}"
    for name in {**proposal.allocations, **proposal.placements}:
        job = active[name]
        movable = job.spec.preemptible or job.phase not in HOLDING or not job.target
        assert movable, f"{name} may not be preempted"
    assert _gpus(snapshot, proposal) <= snapshot.gpus, "more GPUs are given than there are"
    plain = dict(proposal.memory)
    assert msgspec.json.decode(msgspec.json.encode(plain)) == plain, f"memory {plain} is not plain data"
    assert proposal.wake_at is None or proposal.wake_at > snapshot.now, (
        "the policy wants to be woken in the past"
    )


def _check_size(job: JobView, allocation: Allocation) -> None:
    for role in job.spec.roles if allocation else ():
        count = sum(share.count for share in allocation.shares if share.role == role.name)
        assert role.min <= count <= role.max, f"{job.id} was proposed {count} of role {role.name}"


def _differs(job: JobView, allocation: Allocation) -> bool:
    if not allocation or not job.target:
        return bool(allocation) != bool(job.target)
    counts: dict[tuple[str, str], int] = {}
    for slot in job.target.slots:
        for kind in (slot.gpu_type, ""):
            counts[slot.role, kind] = counts.get((slot.role, kind), 0) + slot.replicas
    return any(counts.get((s.role, s.gpu_type), 0) != s.count for s in allocation.shares)


def _gpus(snapshot: Snapshot, proposal: Proposal) -> int:
    """GPUs promised on open nodes if everything proposed were placed."""
    total = 0
    for job in snapshot.active.values():
        spec = job.spec
        if job.id in proposal.allocations:
            shares = proposal.allocations[job.id].shares
            total += sum(share.count * spec.role(share.role).demand.gpus for share in shares)
        else:
            slots = proposal.placements.get(job.id, job.target or NOWHERE).slots
            open_slots = (slot for slot in slots if slot.node in snapshot.nodes)
            total += sum(slot.replicas * spec.role(slot.role).demand.gpus for slot in open_slots)
    return total


def sample_jobs(seed: int, *, knows_roles: bool = True) -> Iterator[Submission]:
    """Twelve jobs drawn by ``seed``; ``knows_roles``: some of them with a parameter server."""
    draw = random.Random(seed)
    for number in range(12):
        size = draw.choice([1, 1, 2, 4, 6])
        roles = [Role(min=size, max=size, demand=Resources(gpus=draw.choice([1, 1, 2])))]
        if knows_roles and draw.random() < 0.25:
            roles.append(Role(name="server", min=1, max=1, demand=Resources(gpus=0)))
        spec = JobSpec(
            name=f"job {number}",
            user=draw.choice(["ann", "bob"]),
            roles=tuple(roles),
            requested=size,
            duration_s=float(draw.randrange(5, 120)),
            priority=draw.choice([0, 0, 1]),
            preemptible=draw.random() < 0.8,
            after=(f"j{number - 1}",) if draw.random() < 0.15 and number else (),
        )
        yield float(draw.randrange(0, 100)), f"j{number}", spec


def sample_faults(seed: int, cluster: Cluster) -> list[tuple[float, AnyEvent]]:
    """A node lost and back, one drained and opened, a job cancelled, at times drawn by ``seed``."""
    draw = random.Random(seed + 1000)
    lost, drained = cluster.nodes[0], cluster.nodes[1]
    return [
        (float(draw.randrange(20, 60)), NodeLost(node=lost.name)),
        (float(draw.randrange(20, 90)), NodeDrained(node=drained.name)),
        (float(draw.randrange(30, 90)), CancelRequested(job="j3")),
        (100.0, NodeJoined(node=lost)),
        (130.0, NodeOpened(node=drained.name)),
    ]
