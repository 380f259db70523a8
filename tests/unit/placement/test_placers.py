"""Where each placer puts jobs, on clusters small enough to see."""

from __future__ import annotations

import pytest

from coadapt.model import (
    SERVER,
    Allocation,
    Cluster,
    DecisionMade,
    JobSpec,
    JobSubmitted,
    Node,
    NodeJoined,
    Placement,
    Record,
    Resources,
    Role,
    Share,
    Slot,
    parse_cluster,
    workers,
)
from coadapt.placement import AwarePlacer, EvenPlacer, MostFreePlacer, PackedPlacer, Placer, SkewPlacer
from coadapt.placement.skew import MARK
from coadapt.scheduler import SchedulerState


def a_state(
    cluster: Cluster, running: dict[str, dict[str, int]], waiting: dict[str, JobSpec] | None = None
) -> SchedulerState:
    """``running``: job -> node -> replicas; ``waiting``: specs, or by default one job called "new"."""
    state = SchedulerState()
    specs = {name: JobSpec(name=name, roles=(Role(max=64),)) for name in running}
    specs |= {"new": JobSpec(name="new", roles=(Role(max=64),))} if waiting is None else waiting
    targets = {
        name: Placement(slots=tuple(Slot(node=node, replicas=n) for node, n in where.items()))
        for name, where in running.items()
    }
    events = [
        *(NodeJoined(node=node) for node in cluster.nodes),
        *(JobSubmitted(job=name, spec=spec) for name, spec in specs.items()),
        DecisionMade(decision=1, targets=targets),
    ]
    for seq, event in enumerate(events):
        state.apply(Record(seq=seq, at=0.0, event=event))
    return state


def placed(placer: Placer, state: SchedulerState, **counts: int) -> dict[str, dict[str, int]]:
    found = placer.place(state, {name: workers(count) for name, count in counts.items()})
    return {name: {slot.node: slot.replicas for slot in where.slots} for name, where in found.items()}


def test_packed_takes_the_tightest_node() -> None:
    state = a_state(parse_cluster("3x4"), {"a": {"n1": 2}, "b": {"n2": 3}})
    assert placed(PackedPlacer(), state, new=2) == {"new": {"n1": 2}}


def test_most_free_takes_the_emptiest_node_and_then_the_next() -> None:
    state = a_state(parse_cluster("3x4"), {"a": {"n0": 2}, "b": {"n1": 1}})
    found = MostFreePlacer().place(state, {"new": workers(6)})["new"]
    assert [(slot.node, slot.replicas) for slot in found.slots] == [("n2", 4), ("n1", 2)]


def test_most_free_lets_jobs_choose_in_the_order_named() -> None:
    specs = {name: JobSpec(name=name, roles=(Role(max=64),)) for name in "xy"}
    state = a_state(parse_cluster("1x4,1x3"), {}, specs)
    assert placed(MostFreePlacer(), state, x=1, y=4) == {"x": {"n0": 1}, "y": {"n0": 3, "n1": 1}}
    assert placed(MostFreePlacer(), state, y=4, x=1) == {"y": {"n0": 4}, "x": {"n1": 1}}


def test_aware_prefers_one_node_even_where_more_are_emptier() -> None:
    state = a_state(parse_cluster("3x4"), {"a": {"n0": 2}})
    assert placed(AwarePlacer(), state, new=2) == {"new": {"n0": 2}}
    assert placed(AwarePlacer(), state, new=4) == {"new": {"n1": 4}}


def test_aware_avoids_nodes_of_other_distributed_jobs() -> None:
    # a spans n0 and n1; 2 GPUs are free on each of the four nodes
    running = {"a": {"n0": 2, "n1": 2}, "b": {"n2": 2}, "c": {"n3": 2}}
    state = a_state(parse_cluster("4x4"), running)
    assert placed(PackedPlacer(), state, new=4) == {"new": {"n0": 2, "n1": 2}}
    assert placed(AwarePlacer(), state, new=4) == {"new": {"n2": 2, "n3": 2}}


def test_aware_crowds_a_node_rather_than_let_the_job_wait() -> None:
    state = a_state(parse_cluster("2x4"), {"a": {"n0": 2, "n1": 2}})
    assert placed(AwarePlacer(), state, new=4) == {"new": {"n0": 2, "n1": 2}}


def test_aware_takes_the_fastest_links() -> None:
    links = [1e9, 5e9, 5e9]
    nodes = tuple(Node(name=f"n{i}", gpus=4, link_bytes_per_s=link) for i, link in enumerate(links))
    state = a_state(Cluster(nodes=nodes), {})
    assert placed(AwarePlacer(), state, new=8) == {"new": {"n1": 4, "n2": 4}}


def test_aware_keeps_the_nodes_a_growing_job_has() -> None:
    state = a_state(parse_cluster("3x4"), {"a": {"n1": 4, "n2": 2}})
    assert placed(AwarePlacer(), state, a=8) == {"a": {"n1": 4, "n2": 4}}
    assert placed(AwarePlacer(), state, a=3) == {"a": {"n1": 3}}


def test_aware_two_new_distributed_jobs_stay_apart() -> None:
    specs = {name: JobSpec(name=name, roles=(Role(max=64),)) for name in "xy"}
    state = a_state(parse_cluster("4x4"), {}, specs)
    found = placed(AwarePlacer(), state, x=6, y=6)
    assert not found["x"].keys() & found["y"].keys()


def test_skew_fills_fragments_with_what_bears_it_and_consolidates_the_rest() -> None:
    specs = {
        "skewed": JobSpec(name="skewed", profile="vgg16", roles=(Role(max=8),)),
        "marked": JobSpec(name="marked", envs={MARK: "1"}, roles=(Role(max=8),)),
        "plain": JobSpec(name="plain", profile="resnet50", roles=(Role(max=8),)),
    }
    state = a_state(parse_cluster("3x4"), {"a": {"n0": 3}, "b": {"n1": 3}}, specs)
    assert placed(SkewPlacer(), state, plain=4) == {"plain": {"n0": 1, "n1": 1, "n2": 2}}
    assert placed(SkewPlacer(), state, skewed=4) == {"skewed": {"n2": 4}}
    assert placed(SkewPlacer(), state, marked=4) == {"marked": {"n2": 4}}


def test_skew_waits_for_consolidation_if_told_to() -> None:
    specs = {"skewed": JobSpec(name="skewed", profile="vgg16", roles=(Role(max=8),))}
    state = a_state(parse_cluster("2x4"), {"a": {"n0": 1}, "b": {"n1": 1}}, specs)
    assert placed(SkewPlacer(), state, skewed=4) == {"skewed": {"n0": 3, "n1": 1}}
    assert placed(SkewPlacer(wait=True), state, skewed=4) == {}


def test_even_spreads_workers_and_servers_over_the_fewest_nodes() -> None:
    roles = (
        Role(max=8, demand=Resources(gpus=1, cpus=1.0)),
        Role(name=SERVER, max=8, demand=Resources(gpus=0, cpus=2.0)),
    )
    specs = {"job": JobSpec(name="job", roles=roles, sync="ps")}
    nodes = tuple(Node(name=f"n{i}", gpus=4, cpus=8.0) for i in range(3))
    state = a_state(Cluster(nodes=nodes), {}, specs)
    wanted = Allocation(shares=(Share(count=4), Share(count=4, role=SERVER)))
    # one node has the GPUs, but 4 x 1 + 4 x 2 CPUs are more than its 8
    found = EvenPlacer().place(state, {"job": wanted})["job"]
    assert [(s.role, s.node, s.replicas) for s in found.slots] == [
        ("worker", "n0", 2),
        ("worker", "n1", 2),
        (SERVER, "n0", 2),
        (SERVER, "n1", 2),
    ]


@pytest.mark.parametrize("placer", [PackedPlacer, MostFreePlacer, AwarePlacer, SkewPlacer, EvenPlacer])
def test_placer_leaves_out_what_does_not_fit(placer: type[PackedPlacer]) -> None:
    state = a_state(parse_cluster("2x4"), {"a": {"n0": 3}})
    assert placed(placer(), state, new=6) == {}
    assert sum(placed(placer(), state, new=5)["new"].values()) == 5
