"""Proposals that place some jobs themselves: the placer finds room for the others beside them."""

from __future__ import annotations

from coadapt.model import Allocation, DecisionMade, JobSubmitted, NodeJoined, Record, workers
from coadapt.model.snapshot import Snapshot
from coadapt.placement import PackedPlacer
from coadapt.placement.tidy import TidyPlacer
from coadapt.policies import Curves, Memory, Proposal, Rng
from coadapt.scheduler import FittedCurves, SchedulerState
from coadapt.scheduler.cycle import decide
from tests.builders import a_cluster, a_job, on


class Saying:
    """A policy that proposes what it was told."""

    placer, adapts_batch, chooses_size = "packed", False, False

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """See ``Policy``."""
        return self.proposal


def a_state() -> SchedulerState:
    """Two nodes of two GPUs; a runs on n0, big and b wait."""
    state = SchedulerState()
    events = [
        *(NodeJoined(node=node) for node in a_cluster("2x2").nodes),
        *(JobSubmitted(job=name, spec=a_job(1, name=name)) for name in ("a", "b")),
        JobSubmitted(job="big", spec=a_job(1, per_replica=2, name="big")),
        DecisionMade(decision=1, targets={"a": on("n0")}),
    ]
    for seq, event in enumerate(events):
        state.apply(Record(seq=seq, at=0.0, event=event))
    return state


def decided(proposal: Proposal, placer: PackedPlacer) -> dict[str, list[str]]:
    state = a_state()
    found, _ = decide(state, Saying(proposal), placer, FittedCurves().of(state), seed=0, warm=None)
    return {name: [slot.node for slot in target.slots] for name, target in found.targets.items()}


def test_a_job_in_the_way_is_placed_again_and_another_beside_it() -> None:
    allocations = {"a": workers(1, "gpu"), "b": workers(1, "gpu")}
    proposal = Proposal(placements={"big": on("n0")}, allocations=allocations)
    for placer in (PackedPlacer(), TidyPlacer()):
        assert decided(proposal, placer) == {"big": ["n0"], "a": ["n1"], "b": ["n1"]}


def test_a_job_in_the_way_takes_what_is_left() -> None:
    allocations: dict[str, Allocation] = {"a": workers(1, "gpu")}
    proposal = Proposal(placements={"big": on("n0"), "b": on("n1")}, allocations=allocations)
    for placer in (PackedPlacer(), TidyPlacer()):
        assert decided(proposal, placer) == {"big": ["n0"], "b": ["n1"], "a": ["n1"]}


def test_placements_without_allocations_are_as_proposed() -> None:
    assert decided(Proposal(placements={"big": on("n1")}), PackedPlacer()) == {"big": ["n1"]}
