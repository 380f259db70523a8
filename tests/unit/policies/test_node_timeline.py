"""The nodes over time: where and when a job fits beside what is held."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import JobSpec, NodeJoined, Placement, Record, Resources, Role, Slot, parse_cluster
from coadapt.policies.coadapt.node_timeline import Hold, NodeTimeline
from coadapt.scheduler import SchedulerState
from tests.builders import on


def timeline(cluster: str, *, cpus: float | None = None) -> NodeTimeline:
    """Empty nodes."""
    state = SchedulerState()
    for seq, node in enumerate(parse_cluster(cluster).nodes):
        joined = NodeJoined(node=msgspec.structs.replace(node, cpus=cpus))
        state.apply(Record(seq=seq, at=0.0, event=joined))
    return NodeTimeline(state)


def job(workers: int = 1, *, gpus: int = 1, **fields: object) -> JobSpec:
    """A job of so many workers."""
    demand = Resources(gpus=gpus, cpus=float(fields.pop("cpus", 0.0)))  # type: ignore[arg-type]
    return JobSpec(
        name="j",
        roles=(Role(min=workers, max=workers, demand=demand),),
        requested=workers,
        **fields,  # type: ignore[arg-type]
    )


def held(name: str, node: str, gpus: int, start: float, end: float) -> Hold:
    return Hold(name, job(gpus), on((node, gpus)), start, end)


def first(
    nodes: NodeTimeline, spec: JobSpec, length_s: float, before: float = math.inf
) -> tuple[float, Placement] | None:
    """The first moment from 0 on."""
    return nodes.first(spec, spec.requested, 0.0, length_s, before)


def shape(found: tuple[float, Placement] | None) -> tuple[float, dict[str, int]] | None:
    return None if found is None else (found[0], {slot.node: slot.replicas for slot in found[1].slots})


def test_a_job_fits_when_enough_of_one_node_has_ended() -> None:
    nodes = timeline("2x4")
    nodes.add(held("a", "n0", 1, 0.0, 100.0))
    nodes.add(held("b", "n1", 2, 0.0, 50.0))
    assert shape(first(nodes, job(6), 10.0)) == (50.0, {"n0": 2, "n1": 4})
    assert shape(first(nodes, job(1, gpus=4), 10.0)) == (50.0, {"n1": 1})
    assert shape(first(nodes, job(2, gpus=4), 10.0)) == (100.0, {"n0": 1, "n1": 1})
    assert shape(first(nodes, job(2), 10.0)) == (0.0, {"n1": 2})


def test_a_job_must_end_before_what_is_reserved_there_begins() -> None:
    nodes = timeline("1x4")
    nodes.add(held("later", "n0", 4, 100.0, 200.0))
    assert shape(first(nodes, job(1), 100.0)) == (0.0, {"n0": 1})
    assert shape(first(nodes, job(1), 101.0)) == (200.0, {"n0": 1})
    assert first(nodes, job(1), 101.0, before=150.0) is None


def test_what_never_ends_leaves_no_moment() -> None:
    nodes = timeline("1x4")
    nodes.add(held("endless", "n0", 1, 0.0, math.inf))
    assert first(nodes, job(4), 10.0) is None
    assert nodes.endless(job(4)) == ["endless"]
    assert shape(first(nodes, job(3), math.inf)) == (0.0, {"n0": 3})
    nodes.remove("endless")
    assert shape(first(nodes, job(4), 10.0)) == (0.0, {"n0": 4})


def test_workers_share_one_gpu_type_and_the_types_that_they_may_use() -> None:
    nodes = timeline("1x2:a,1x4:b")
    assert shape(first(nodes, job(5), 1.0)) is None
    assert shape(first(nodes, job(3), 1.0)) == (0.0, {"n1": 3})
    assert shape(first(nodes, job(2, gpu_types=("a",)), 1.0)) == (0.0, {"n0": 2})
    assert first(nodes, job(3, gpu_types=("a",)), 1.0) is None


def test_a_node_that_is_not_there_any_more_counts_for_nothing() -> None:
    nodes = timeline("1x4")
    nodes.add(held("elsewhere", "gone", 4, 0.0, math.inf))
    assert shape(first(nodes, job(4), 1.0)) == (0.0, {"n0": 4})
    assert nodes.endless(job(4)) == []
    assert not nodes.placement([["gone", 1, "worker"]])
    assert not nodes.bears(job(1), on(("gone", 1)), 0.0, 1.0)


def test_cpus_count_beside_gpus() -> None:
    nodes = timeline("1x4", cpus=8.0)
    assert nodes.fit(job(2, cpus=4.0), 2, 0.0, 1.0) is not None
    assert nodes.fit(job(3, cpus=4.0), 3, 0.0, 1.0) is None
    nodes.add(Hold("a", job(1, cpus=5.0), on(("n0", 1)), 0.0, 60.0))
    assert shape(first(nodes, job(1, cpus=4.0), 1.0)) == (60.0, {"n0": 1})


@given(
    st.sampled_from(["1x4", "3x2", "2x4:a,1x8:b"]),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 50), st.integers(1, 50)), max_size=8
    ),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([5.0, 30.0, math.inf]),
)
def test_what_is_found_is_free_and_nothing_earlier_is(
    cluster: str, holds: list[tuple[int, int, int, int]], workers: int, gpus: int, length_s: float
) -> None:
    nodes = timeline(cluster)
    room = [node.gpus for node in parse_cluster(cluster).nodes]
    for number, (node, size, start, lasts) in enumerate(holds):
        place = node % len(room)
        nodes.add(held(f"h{number}", f"n{place}", min(size, room[place]), float(start), float(start + lasts)))
    spec = job(workers, gpus=gpus)
    found = first(nodes, spec, length_s)
    if found is None:
        empty = timeline(cluster)
        assert first(empty, spec, length_s) is None
        return
    at, target = found
    assert target.replicas == workers
    assert nodes.bears(spec, target, at, at + length_s)
    for moment in sorted({0.0, *(hold.end for hold in nodes.holds.values())}):
        if moment < at:
            assert nodes.fit(spec, workers, moment, moment + length_s) is None


def test_slots_are_of_the_nodes_type() -> None:
    found = timeline("1x2:a").fit(job(2), 2, 0.0, 1.0)
    assert found == Placement(slots=(Slot(node="n0", replicas=2, gpu_type="a"),))
