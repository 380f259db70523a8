"""Where jobs share GPUs, whatever happens: no GPU is given to more than its shares, and no job is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InvariantError
from coadapt.model import NOWHERE, DecisionMade, JobSubmitted, NodeJoined, Placement, Record, Slot
from coadapt.model.snapshot import ENDED, HOLDING, JobView, Snapshot
from coadapt.policies import Curves, Memory, Proposal, Rng
from coadapt.policies._base import gpus_needed
from coadapt.report import History
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.cycle import check
from coadapt.scheduler.state.saved_state import load, save
from tests.builders import a_cluster, a_job, records_of
from tests.properties.digest import state_digest
from tests.properties.ledger import Ledger
from tests.properties.world import World, budget, live, worlds


class PairsPolicy:
    """Puts two jobs of one size on the same GPUs wherever it can, and mixes pairs anew at every decision."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        fixed = [job for job in snapshot if job.phase in HOLDING and job.target and not job.spec.preemptible]
        left = {name: view.node.gpus for name, view in snapshot.nodes.items()}
        groups = {slot.group for job in fixed for slot in job.target.slots if slot.group}
        for job in fixed:
            for slot in job.target.slots:
                if slot.node in left:
                    left[slot.node] -= slot.replicas * job.spec.role(slot.role).demand.gpus
        free = [job for job in snapshot if job not in fixed]
        rng().shuffle(free)  # type: ignore[arg-type]
        placements: dict[str, Placement] = {job.id: NOWHERE for job in free}
        while free:
            job = free.pop()
            other = next((each for each in free if _alike(each, job)), None)
            group = "" if other is None else "+".join(sorted((job.id, other.id)))
            at = _find(job, left, group, snapshot) if group not in groups else NOWHERE
            if at and other is not None:
                free.remove(other)
                placements[other.id] = at
            placements[job.id] = at
        changed = {name: at for name, at in placements.items() if at != snapshot.active[name].target}
        return Proposal(placements=changed, wake_at=snapshot.now + 25.0 if placements else None)


def _alike(one: JobView, other: JobView) -> bool:
    return (one.spec.worker.demand, one.spec.requested) == (other.spec.worker.demand, other.spec.requested)


def _find(job: JobView, left: dict[str, int], group: str, snapshot: Snapshot) -> Placement:
    each, rest, slots = job.spec.gpus_per_replica, job.spec.requested, []
    kinds = {snapshot.nodes[name].node.gpu_type for name in left}
    for kind in sorted(kinds):
        slots, rest = [], job.spec.requested
        for name in left:
            node = snapshot.nodes[name].node
            count = min(rest, left[name] // each) if node.gpu_type == kind else 0
            if count > 0:
                share = 0.5 if group else 1.0
                slots.append(Slot(node=name, replicas=count, gpu_type=kind, share=share, group=group))
                rest -= count
        if not rest:
            for slot in slots:
                left[slot.node] -= slot.replicas * each
            return Placement(slots=tuple(slots))
    return NOWHERE


def test_shares_hold_after_every_record() -> None:
    shared: list[int] = []

    @budget(60)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        world: World = data.draw(worlds(gpus_only=True))
        folded, ledger = SchedulerState(), Ledger()

        def see(record: Record) -> None:
            folded.apply(record)
            folded.validate()
            ledger.take(record)
            if isinstance(record.event, DecisionMade):
                assert state_digest(load(save(folded))) == state_digest(folded)
                shared.append(sum(target.shared for target in record.event.targets.values()))

        records, state = live(world, PairsPolicy(), on_record=see)
        ledger.check_end()
        assert all(job.phase in ENDED for job in state.jobs.values())
        told = History.of(records)
        for job in state.jobs.values():
            assert abs(told.jobs[job.id].held_gpu_s - job.attained_gpu_s(state.now)) < 1e-6
        # a GPU that is shared counts once: nobody is charged for more than the cluster has
        used = sum(job.attained_gpu_s(state.now) for job in state.jobs.values())
        assert used <= world.cluster.gpus * state.now + 1e-6

    run()
    assert sum(shared) > 50, "hardly any job shared GPUs: the property says little"


def a_state(*jobs: str) -> SchedulerState:
    state = SchedulerState()
    events: list[Any] = [(0.0, NodeJoined(node=node)) for node in a_cluster("1x2").nodes]
    events += [(0.0, JobSubmitted(job=name, spec=a_job(1))) for name in jobs]
    for record in records_of(*events):
        state.apply(record)
    return state


def on(group: str = "", share: float = 1.0, replicas: int = 1) -> Placement:
    return Placement(slots=(Slot(node="n0", replicas=replicas, group=group, share=share),))


def test_two_pairs_fit_two_gpus_and_a_third_does_not() -> None:
    state = a_state("a", "b", "c", "d", "e")
    pairs = {"a": on("p", 0.5), "b": on("p", 0.5), "c": on("q", 0.5), "d": on("q", 0.5)}
    check(state, pairs)
    with pytest.raises(InvariantError, match="3 of 2 GPUs promised on node n0"):
        check(state, {**pairs, "e": on("r", 0.5)})


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(InvariantError, match="more than the whole of shared GPUs promised on node n0: p"):
        check(a_state("a", "b", "c"), {name: on("p", 0.4) for name in "abc"})


def test_job_that_shares_is_charged_for_its_share() -> None:
    state = a_state("a")
    job = state.jobs["a"]
    state.hold(job, on("p", 0.25))
    assert job.attained_gpu_s(100.0) == 25.0
    assert gpus_needed(job.spec) == job.held_gpus == 1
