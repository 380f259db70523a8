"""Conformance suite of placers: subclass it, implement ``make``, run pytest.

The suite runs policies on small seeded workloads through the real scheduler and a simulated cluster with faults, and
checks every placement on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coadapt.model import Allocation, Placement, Record, encode, parse_cluster
from coadapt.model.snapshot import Snapshot
from coadapt.placement import Placer
from coadapt.plugins import POLICIES
from coadapt.scheduler import SchedulerState
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog
from coadapt.testing.policies import sample_faults, sample_jobs


class PlacerConformance:
    """Conformance suite of a placer: subclass it and implement ``make``."""

    #: Policies it is run under: one that keeps jobs where they are, and one that preempts and moves.
    policies: tuple[str, ...] = ("fifo", "fair-share", "tiresias")

    def make(self) -> Placer:
        """A new instance; all of them alike."""
        raise NotImplementedError

    def test_placements_keep_the_contract(self) -> None:
        """Placements match the allocations, use open nodes only, and move no job that must stay."""
        calls = 0
        for policy in self.policies:
            for seed in range(4):
                inspector = PlacerInspector(self.make())
                self._run(inspector, policy, seed)
                calls += inspector.calls
        assert calls > 0

    def test_same_workload_gives_the_same_log(self) -> None:
        """A placer is pure: two instances, one log, byte for byte."""
        for policy in self.policies:
            assert self._run(self.make(), policy, 1) == self._run(self.make(), policy, 1)

    def test_capacity_is_kept_after_every_record(self) -> None:
        """No node is promised more than it has."""
        for policy in self.policies:
            state = SchedulerState()
            for record in self._records(self.make(), policy, 2):
                state.apply(record)
                state.validate()

    def test_nothing_to_place_is_placed(self) -> None:
        """Without allocations there are no placements, also on an empty cluster."""
        assert self.make().place(SchedulerState(), {}, ()) == {}

    def _run(self, placer: Placer, policy: str, seed: int) -> list[bytes]:
        return [encode(record) for record in self._records(placer, policy, seed)]

    def _records(self, placer: Placer, policy: str, seed: int) -> list[Record]:
        log, cluster = MemoryLog(), parse_cluster("3x4")
        setting = Setting(
            change_cost=constant(5.0), stop_s=2.0, seed=seed, events=sample_faults(seed, cluster)
        )
        simulate(sample_jobs(seed), cluster, POLICIES.make(policy), log, placer=placer, setting=setting)
        return list(log.read())


class PlacerInspector:
    """Passes everything to a placer and checks what it answers."""

    def __init__(self, placer: Placer) -> None:
        self.placer, self.calls = placer, 0

    def place(
        self, snapshot: Snapshot, allocations: Mapping[str, Allocation], fixed: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Passes the call to the placer and checks the placements that it returns."""
        self.calls += 1
        before = [(job.id, job.target) for job in snapshot]
        placed = self.placer.place(snapshot, allocations, fixed)
        again = self.placer.place(snapshot, allocations, fixed)
        assert placed == again, "the same question has two answers"
        assert [(job.id, job.target) for job in snapshot] == before, (
            "the placer changed what it may only read"
        )
        for name, placement in placed.items():
            assert name in snapshot.active, f"{name} may not run"
            if name in allocations:
                _check_size(name, allocations[name], placement)
            else:
                assert name not in fixed, f"{name} was moved although it is to stay"
                assert _counts(placement) == _counts(snapshot.active[name].target), f"{name} was resized"
            for slot in placement.slots:
                assert slot.node in snapshot.nodes, f"{name} was put on {slot.node}, which is not open"
        return placed


def _check_size(name: str, allocation: Allocation, placement: Placement) -> None:
    for share in allocation.shares:
        found = sum(
            slot.replicas
            for slot in placement.slots
            if slot.role == share.role and share.gpu_type in ("", slot.gpu_type)
        )
        assert found == share.count, f"{name} asked for {share} and got {found}"
    assert sum(_counts(placement).values()) == sum(share.count for share in allocation.shares)


def _counts(placement: Placement) -> dict[str, int]:
    counts: dict[str, int] = {}
    for slot in placement.slots:
        counts[slot.role] = counts.get(slot.role, 0) + slot.replicas
    return counts
