"""One decision: what the cluster can bear, in GPUs and everything else, and when the next one is due."""

from __future__ import annotations

import msgspec
import pytest

from coadapt.errors import InputError, InvariantError
from coadapt.model import (
    SERVER,
    AnyEvent,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    Resources,
    Role,
    Woke,
)
from coadapt.model.snapshot import Snapshot
from coadapt.placement import MostFreePlacer, PackedPlacer, Placer
from coadapt.policies import Curves, FifoPolicy, Memory, Policy, Proposal, Rng
from coadapt.scheduler import Scheduler
from tests.builders import a_cluster, a_job, on


class Says:
    """A policy that proposes one thing, always."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def __init__(self, **proposal: object) -> None:
        self.proposal = Proposal(**proposal)  # type: ignore[arg-type]

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        return self.proposal


def decided(
    policy: Policy, cluster_events: list[AnyEvent], placer: Placer | None = None, **options: float
) -> Scheduler:
    """The scheduler after these events and one decision."""
    scheduler = Scheduler(policy, placer or PackedPlacer(), **options)
    for seq, event in enumerate([*cluster_events, Woke()]):
        scheduler.handle(Record(seq=10 * seq, at=1.0, event=event))
        scheduler.state.validate()
    return scheduler


def joined(shape: str, **limits: float) -> list[AnyEvent]:
    return [NodeJoined(node=node) for node in a_cluster(shape, **limits).nodes]


def submitted(**specs: JobSpec) -> list[AnyEvent]:
    return [JobSubmitted(job=name, spec=spec) for name, spec in specs.items()]


def targets(scheduler: Scheduler) -> dict[str, Placement]:
    return {name: job.target for name, job in scheduler.state.placed.items()}


PLACERS = [PackedPlacer(), MostFreePlacer()]


@pytest.mark.parametrize("placer", PLACERS)
def test_jobs_of_one_decision_do_not_get_the_same_cpus(placer: Placer) -> None:
    jobs = submitted(a=a_job(cpus=6.0), b=a_job(cpus=6.0))
    assert len(targets(decided(FifoPolicy(), joined("1x4", cpus=8.0) + jobs, placer))) == 1
    assert len(targets(decided(FifoPolicy(), joined("2x4", cpus=8.0) + jobs, placer))) == 2


@pytest.mark.parametrize("placer", PLACERS)
def test_roles_of_one_job_do_not_get_the_same_gpu(placer: Placer) -> None:
    roles = (Role(min=2, max=2), Role(name=SERVER, min=1, max=1, demand=Resources(gpus=1)))
    spec = msgspec.structs.replace(a_job(2), roles=roles)
    assert targets(decided(FifoPolicy(), joined("1x2") + submitted(a=spec), placer)) == {}
    found = targets(decided(FifoPolicy(), joined("1x3") + submitted(a=spec), placer))
    assert (found["a"].count("worker"), found["a"].count(SERVER)) == (2, 1)


@pytest.mark.parametrize("placer", PLACERS)
def test_server_without_gpus_goes_to_a_node_whose_gpus_are_taken(placer: Placer) -> None:
    found = targets(decided(FifoPolicy(), joined("1x4") + submitted(a=a_job(4, servers=1)), placer))
    assert found["a"].count(SERVER) == 1


def test_extra_that_no_node_offers_is_never_found() -> None:
    demand = Resources(gpus=1, extras={"fpga": 1.0})
    spec = msgspec.structs.replace(a_job(), roles=(Role(demand=demand),))
    assert targets(decided(FifoPolicy(), joined("1x4") + submitted(a=spec))) == {}
    fpgas = [NodeJoined(node=msgspec.structs.replace(a_cluster("1x4").nodes[0], extras={"fpga": 1.0}))]
    assert targets(decided(FifoPolicy(), [*fpgas, *submitted(a=spec, b=spec)])) == {"a": on("n0")}


@pytest.mark.parametrize(
    ("proposal", "complaint"),
    [
        ({"placements": {"a": on(("n0", 2)), "b": on(("n0", 3))}}, "5 of 4 GPUs promised"),
        ({"placements": {"a": on("n0")}}, "1 replicas of role worker, allowed 2..2"),
        ({"placements": {"a": on(("n7", 2))}}, "which the cluster does not offer"),
        ({"placements": {"nobody": on("n0")}}, "which may not run"),
        ({"reasons": {"nobody": None}}, "which may not run"),
    ],
)
def test_decision_that_cannot_be_borne_is_refused(proposal: dict[str, object], complaint: str) -> None:
    events = joined("1x4") + submitted(a=a_job(2), b=a_job(3))
    with pytest.raises(InvariantError, match=complaint):
        decided(Says(**proposal), events)


@pytest.mark.parametrize("said", [None, {}, "nothing"])
def test_policy_that_returns_no_proposal_is_named(said: object) -> None:
    class Silent(Says):
        def decide(self, *_: object) -> object:
            return said

    what = type(said).__name__
    with pytest.raises(InputError, match=rf"Silent.decide returned {what}; it must return a .*Proposal"):
        decided(Silent(), joined("1x4") + submitted(a=a_job(2)))


def test_decision_may_give_one_job_what_another_leaves() -> None:
    scheduler = decided(
        Says(placements={"a": on(("n0", 4))}), joined("1x4") + submitted(a=a_job(4), b=a_job(4))
    )
    scheduler.policy = Says(placements={"b": on(("n0", 4)), "a": on()})
    scheduler.state.undecided = True
    scheduler.handle(Record(seq=99, at=1.0, event=Woke()))
    assert targets(scheduler) == {"b": on(("n0", 4))}


def test_memory_on_a_node_is_not_claimed_twice_in_one_pass() -> None:
    """c still holds 6 of 10 bytes when a and b, of 4 each, are promised its place: one starts, the other waits."""
    events = joined("1x4", memory_bytes=10.0)
    jobs = {name: a_job(memory_bytes=size) for name, size in (("c", 6.0), ("a", 4.0), ("b", 4.0))}
    scheduler = decided(Says(placements={"c": on("n0")}), events + submitted(**jobs))
    scheduler.policy = Says(placements={"c": on(), "a": on("n0"), "b": on("n0")})
    scheduler.state.undecided = True
    scheduler.handle(Record(seq=99, at=1.0, event=Woke()))
    scheduler.state.validate()
    held = [name for name, job in scheduler.state.jobs.items() if job.held]
    assert held == ["c", "a"]


def test_moment_that_has_passed_is_not_woken_for() -> None:
    scheduler = decided(Says(wake_at=1.0), joined("1x4"))
    assert scheduler.wake_at is None
    assert decided(Says(wake_at=1.5), joined("1x4")).wake_at == 1.5


def test_policy_is_not_woken_before_the_least_interval() -> None:
    assert decided(Says(wake_at=2.0), joined("1x4"), min_interval_s=10.0).wake_at == 11.0
    assert decided(Says(wake_at=20.0), joined("1x4"), min_interval_s=10.0).wake_at == 20.0
