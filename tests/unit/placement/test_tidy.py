"""Jobs kept whole, small ones making room, and the network minded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import (
    SERVER,
    Allocation,
    Cluster,
    JobSpec,
    Node,
    NodeDrained,
    Placement,
    Resources,
    Role,
    Share,
    Slot,
    gpus_of,
    workers,
)
from coadapt.model.snapshot import HOLDING
from coadapt.placement import PackedPlacer, TidyPlacer
from coadapt.scheduler.cycle import check
from tests.unit.placement.world import Where, World, a_spec


def placed(world: World, placer: PackedPlacer | None = None, **wanted: int | Allocation) -> dict[str, Where]:
    """Where jobs go that are to have so many workers; nothing is promised that cannot be kept."""
    asked = {name: workers(n) if isinstance(n, int) else n for name, n in wanted.items()}
    for name in asked:
        if name not in world.state.jobs:
            world.submit(name)
    found = (placer or TidyPlacer()).place(world.state, asked)
    check(world.state, {name: t for name, t in found.items() if t != world.state.jobs[name].target})
    return {name: {slot.node: slot.replicas for slot in where.slots} for name, where in found.items()}


# -- whole ---------------------------------------------------------------------------------------------------


def test_a_job_that_fits_goes_to_the_tightest_node() -> None:
    world = World("3x4")
    world.run("a", {"n0": 1})
    world.run("b", {"n1": 2})
    assert placed(world, new=2) == {"new": {"n1": 2}}
    assert placed(world, new=3) == {"new": {"n0": 3}}
    assert placed(world, new=4) == {"new": {"n2": 4}}


def test_a_job_stays_on_the_node_it_has_if_it_fits_there() -> None:
    world = World("3x4")
    world.run("a", {"n2": 2})
    world.run("b", {"n0": 2})
    assert placed(world, a=4) == {"a": {"n2": 4}}
    assert placed(world, a=1) == {"a": {"n2": 1}}


def test_a_larger_job_keeps_its_nodes_and_adds_empty_ones() -> None:
    world = World("4x4")
    world.run("a", {"n1": 4, "n3": 4})
    world.run("b", {"n0": 1})
    assert placed(world, a=12) == {"a": {"n1": 4, "n2": 4, "n3": 4}}
    assert placed(world, a=4) == {"a": {"n1": 4}}


def test_small_jobs_make_room() -> None:
    world = World("2x4")
    world.run("a", {"n0": 1})
    world.run("b", {"n1": 2})
    assert placed(world, new=4) == {"a": {"n1": 1}, "new": {"n0": 4}}
    assert placed(world, PackedPlacer(), new=4) == {"new": {"n0": 3, "n1": 1}}


def test_room_is_made_by_moving_the_least() -> None:
    world = World("3x4")
    world.run("a", {"n0": 2})
    world.run("b", {"n1": 1})
    world.run("c", {"n2": 2})
    assert placed(world, new=4) == {"b": {"n0": 1}, "new": {"n1": 4}}


def test_the_hardest_case_on_nodes_of_four() -> None:
    """One free GPU on each of four nodes, and nowhere a gap for a job of 2: one has to be made first."""
    world = World("4x4")
    for number in range(4):
        world.run(f"two{number}", {f"n{number}": 2})
        world.run(f"one{number}", {f"n{number}": 1})
    found = placed(world, new=4)
    assert list(found.pop("new").values()) == [4]
    assert sum(sum(where.values()) for where in found.values()) == 4
    assert all(len(where) == 1 for where in found.values())


def test_what_moved_is_not_given_away_a_second_time() -> None:
    """4 + 2 of 6 free: a makes room by moving to n1, so that the rest finds its place on n2 only."""
    world = World("3x4")
    for number in range(3):
        world.run("abc"[number], {f"n{number}": 2})
    assert placed(world, new=6) == {"a": {"n1": 2}, "new": {"n0": 4, "n2": 2}}


def test_nobody_moves_in_vain() -> None:
    """One node could be cleared for the first half, none for the second: the job is in pieces either way."""
    world = World("3x4")
    world.run("a", {"n0": 1})
    world.run("b", {"n1": 1}, a_spec(preemptible=False))
    world.run("c", {"n2": 2}, a_spec(preemptible=False))
    assert placed(world, new=8) == {"new": {"n0": 3, "n1": 3, "n2": 2}}


def test_moves_are_no_more_than_what_they_serve() -> None:
    """Moving two jobs of 3 would bring 7 GPUs together: too much for a job of 5, not for one of 6."""

    def a_world() -> World:
        world = World("3x8")
        world.run("x", {"n0": 1}, a_spec(preemptible=False))
        world.run("a", {"n0": 3})
        world.run("b", {"n0": 3})
        world.run("c", {"n1": 5}, a_spec(preemptible=False))
        world.run("d", {"n2": 5}, a_spec(preemptible=False))
        return world

    assert placed(a_world(), new=5) == {"new": {"n1": 3, "n2": 2}}
    assert placed(a_world(), new=6) == {"a": {"n1": 3}, "b": {"n2": 3}, "new": {"n0": 6}}


def test_two_that_need_room_share_the_moves() -> None:
    """A job that has moved may move on: it is started once."""
    world = World("4x4")
    for number in range(4):
        world.run("abcd"[number], {f"n{number}": 2})
    found = placed(world, x=4, y=4)
    assert sorted(found["x"].values()) == sorted(found["y"].values()) == [4]
    assert len(found) == 4


@pytest.mark.parametrize(
    "stays", [{"preemptible": False}, {"roles": (Role(max=4), Role(name=SERVER, min=0))}]
)
def test_who_may_not_be_preempted_or_has_roles_stays(stays: dict[str, Any]) -> None:
    world = World("2x4")
    for number in range(2):
        world.run("ab"[number], {f"n{number}": 2}, a_spec(**stays))
    assert placed(world, new=4) == {"new": {"n0": 2, "n1": 2}}


def test_who_is_only_promised_a_place_may_move_even_if_not_preemptible() -> None:
    world = World("2x4")
    world.run("b", {"n1": 2}, a_spec(preemptible=False))
    world.submit("a", a_spec(preemptible=False))
    world.decide({"a": Placement(slots=(Slot(node="n0", replicas=2),))})
    assert placed(world, new=4) == {"a": {"n1": 2}, "new": {"n0": 4}}


# -- clusters that are not all alike ---------------------------------------------------------------------------


def test_whole_nodes_of_the_smaller_size_beat_pieces_of_the_larger() -> None:
    world = World("1x8,3x4")
    world.run("a", {"n0": 2}, a_spec(preemptible=False))
    assert placed(world, new=12) == {"new": {"n1": 4, "n2": 4, "n3": 4}}
    assert placed(world, new=8) == {"new": {"n1": 4, "n2": 4}}
    assert placed(world, new=6) == {"new": {"n0": 6}}


def test_one_large_node_cleared_beats_many_small_ones() -> None:
    world = World("1x8,8x1")
    world.run("a", {"n0": 2})
    spread = placed(world, new=8)
    assert spread["new"] == {f"n{i}": 1 for i in range(1, 9)}  # a fits nowhere else
    world.run("b", {"n1": 1})
    world = World("1x8,4x2")
    world.run("a", {"n0": 2})
    assert placed(world, new=8) == {"a": {"n1": 2}, "new": {"n0": 8}}


def test_replicas_of_several_gpus_find_room_that_is_made() -> None:
    """Two and two GPUs are free; a replica needs four on one node."""
    world = World("2x4")
    world.run("a", {"n0": 2})
    world.run("b", {"n1": 2})
    world.submit("new", a_spec(per=4))
    assert PackedPlacer().place(world.state, {"new": workers(1)}) == {}
    assert placed(world, new=1) == {"a": {"n1": 2}, "new": {"n0": 1}}


def test_replicas_of_three_gpus_take_one_node_each() -> None:
    world = World("3x4")
    world.submit("new", a_spec(per=3))
    assert placed(world, new=3) == {"new": {"n0": 1, "n1": 1, "n2": 1}}
    assert placed(world, new=4) == {}


def test_cpus_are_kept_by_who_comes_and_by_who_moves() -> None:
    nodes = tuple(Node(name=f"n{i}", gpus=4, cpus=cpus) for i, cpus in enumerate((8.0, 8.0, 2.0)))
    world = World(Cluster(nodes=nodes))
    world.run("a", {"n0": 1}, a_spec(cpus=4.0))
    world.run("b", {"n1": 1}, a_spec(cpus=4.0))
    world.run("c", {"n2": 1})
    world.submit("new", a_spec(cpus=2.0))
    # a has no place on n2, which has CPUs for less; it goes to n1
    assert placed(world, new=4) == {"a": {"n1": 1}, "new": {"n0": 4}}


def test_a_node_with_few_cpus_counts_as_a_small_one() -> None:
    nodes = tuple(Node(name=f"n{i}", gpus=4, cpus=2.0) for i in range(3))
    world = World(Cluster(nodes=nodes))
    world.submit("new", a_spec(cpus=1.0))
    assert placed(world, new=4) == {"new": {"n0": 2, "n1": 2}}


def test_drained_nodes_are_left_alone() -> None:
    world = World("3x4")
    world.run("stays", {"n0": 1}, a_spec(preemptible=False))
    world.run("a", {"n1": 1})
    world.tell(NodeDrained(node="n0"))
    assert placed(world, new=4) == {"new": {"n2": 4}}
    world.run("b", {"n2": 1})
    assert placed(world, new=4) == {"a": {"n2": 1}, "new": {"n1": 4}}
    assert placed(world, new=7) == {}


@pytest.mark.parametrize("asked", ["", "a100"])
def test_types_are_not_mixed_when_room_is_made(asked: str) -> None:
    world = World("2x4:t4,2x4:a100")
    for number in range(4):
        world.run("wxyz"[number], {f"n{number}": 2}, a_spec(preemptible=number > 1))
    found = placed(world, new=Allocation(shares=(Share(count=4, gpu_type=asked),)))
    assert found == {"y": {"n3": 2}, "new": {"n2": 4}}


def test_a_job_that_may_mix_types_takes_whole_nodes_of_both() -> None:
    world = World("1x4:t4,1x4:a100")
    world.submit("new", a_spec(mixed=True))
    assert placed(world, new=8) == {"new": {"n0": 4, "n1": 4}}
    world.submit("other", a_spec())
    assert placed(world, other=8) == {}


def test_servers_go_beside_their_workers() -> None:
    roles = (Role(max=8), Role(name=SERVER, max=8, demand=Resources(gpus=0, cpus=1.0)))
    world = World(Cluster(nodes=tuple(Node(name=f"n{i}", gpus=4, cpus=2.0) for i in range(3))))
    world.run("a", {"n0": 3})
    world.submit("new", a_spec(roles=roles, sync="ps"))

    def slots(count: int, servers: int) -> list[tuple[str, str, int]]:
        wanted = Allocation(shares=(Share(count=count), Share(count=servers, role=SERVER)))
        found = TidyPlacer().place(world.state, {"new": wanted})
        check(world.state, found)
        return [(s.role, s.node, s.replicas) for s in found["new"].slots] if found else []

    assert slots(2, 2) == [("worker", "n1", 2), (SERVER, "n1", 2)]
    assert slots(8, 4) == [("worker", "n1", 4), ("worker", "n2", 4), (SERVER, "n1", 2), (SERVER, "n2", 2)]
    assert slots(2, 3) == [("worker", "n1", 2), (SERVER, "n0", 1), (SERVER, "n1", 2)]
    assert slots(2, 7) == []


# -- the network -------------------------------------------------------------------------------------------------


def test_single_nodes_have_slow_links_and_groups_fast_ones() -> None:
    world = World("4x4", n0=1e9, n1=5e9, n2=1e9, n3=5e9)
    assert placed(world, new=4) == {"new": {"n0": 4}}
    assert placed(world, new=8) == {"new": {"n1": 4, "n3": 4}}
    assert placed(world, new=8, small=2) == {"new": {"n1": 4, "n3": 4}, "small": {"n0": 2}}
    blind = TidyPlacer(bandwidth=False)
    assert placed(world, blind, new=8) == {"new": {"n0": 4, "n1": 4}}


def test_a_tight_fit_counts_more_than_a_slow_link() -> None:
    world = World("2x4", n0=1e9, n1=5e9)
    world.run("a", {"n1": 3})
    assert placed(world, new=1) == {"new": {"n1": 1}}


def test_a_link_that_is_not_stated_limits_nothing() -> None:
    world = World("3x4", n0=5e9)
    assert placed(world, new=8) == {"new": {"n1": 4, "n2": 4}}
    assert placed(world, new=1) == {"new": {"n0": 1}}


def test_no_slow_link_is_mixed_into_a_fast_group() -> None:
    """Of three speeds, a job of three nodes takes the middle ones rather than two fast and one slow; and leaves the fast."""
    links = {"n0": 9e9, "n1": 9e9, "n2": 1e9, "n3": 5e9, "n4": 5e9, "n5": 5e9}
    world = World("6x4", **links)
    assert placed(world, new=12) == {"new": {"n3": 4, "n4": 4, "n5": 4}}
    assert placed(world, new=8) == {"new": {"n0": 4, "n1": 4}}
    assert placed(world, new=16)["new"].keys() == {"n0", "n3", "n4", "n5"}
    assert "n2" in placed(world, new=24)["new"]


def test_a_job_that_grows_leaves_a_slow_node_for_a_fast_group() -> None:
    world = World("3x4", n0=1e9, n1=5e9, n2=5e9)
    world.run("a", {"n0": 4})
    assert placed(world, a=8) == {"a": {"n1": 4, "n2": 4}}
    assert placed(world, TidyPlacer(bandwidth=False), a=8) == {"a": {"n0": 4, "n1": 4}}
    world = World("3x4", n0=5e9, n1=5e9, n2=5e9)
    world.run("a", {"n1": 4})
    assert placed(world, a=8) == {"a": {"n0": 4, "n1": 4}}


def test_a_remainder_avoids_nodes_with_another_distributed_job() -> None:
    world = World("5x4")
    world.run("a", {"n0": 4, "n1": 2})
    world.run("b", {"n2": 2})
    assert placed(world, new=6) == {"new": {"n2": 2, "n3": 4}}
    assert placed(world, TidyPlacer(bandwidth=False), new=6) == {"new": {"n1": 2, "n3": 4}}
    assert not placed(world, x=6, y=5)["x"].keys() & placed(world, x=6, y=5)["y"].keys()


def test_a_crowded_node_is_taken_rather_than_none() -> None:
    world = World("3x4")
    world.run("a", {"n0": 4, "n1": 2})
    assert placed(world, new=6) == {"new": {"n1": 2, "n2": 4}}


def test_pieces_avoid_crowds_and_slow_links() -> None:
    world = World("4x4", n0=1e9, n1=5e9, n2=5e9, n3=5e9)
    for number in range(3):
        world.run("abc"[number], {f"n{number}": 2}, a_spec(preemptible=False))
    world.run("d", {"n3": 4})
    assert placed(world, new=4) == {"new": {"n1": 2, "n2": 2}}


def test_who_moves_goes_to_the_slower_of_two_equal_gaps() -> None:
    world = World("3x4", n0=5e9, n1=5e9, n2=1e9)
    world.run("a", {"n0": 1})
    world.run("b", {"n1": 3})
    world.run("c", {"n2": 3})
    assert placed(world, new=4) == {"a": {"n2": 1}, "new": {"n0": 4}}


# -- whatever comes ------------------------------------------------------------------------------------------------

sizes = st.lists(st.sampled_from([0, 1, 2, 4, 8, 12]), min_size=1, max_size=12)


@given(steps=st.lists(sizes, min_size=1, max_size=6), nodes=st.integers(3, 6))
@settings(max_examples=60, deadline=None)
def test_powers_of_two_and_whole_nodes_are_always_whole(steps: list[list[int]], nodes: int) -> None:
    """Whatever sizes jobs of 1, 2, 4 and whole nodes go through, as long as there are GPUs: no job is ever in pieces."""
    world = World(f"{nodes}x4")
    for number in range(12):
        world.submit(f"j{number}")
    gpus = dict.fromkeys(world.state.jobs, 0)
    for step in steps:
        wanted: dict[str, Allocation] = {}
        for name, size in zip(world.state.jobs, step, strict=False):
            others = sum(gpus.values()) - gpus[name]
            if size != gpus[name] and others + size <= 4 * nodes:
                gpus[name] = size
                wanted[name] = workers(size)
        before = {name: job.target for name, job in world.state.jobs.items()}
        found = TidyPlacer().place(world.state, wanted)
        assert found.keys() >= wanted.keys()
        assert TidyPlacer(bandwidth=False).place(world.state, wanted) == found
        moved = found.keys() - wanted.keys()
        grown = sum(gpus[name] for name in wanted)
        assert sum(gpus_of(before[name], world.state.jobs[name].spec) for name in moved) <= grown
        world.decide(found)
        for job in world.state.jobs.values():
            assert job.target_gpus == gpus[job.id]
            assert len(job.target.slots) == -(-gpus[job.id] // 4)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    roles = [
        Role(
            min=0,
            max=12,
            demand=Resources(
                gpus=draw(st.sampled_from([1, 1, 1, 2, 3])), cpus=draw(st.sampled_from([0.0, 1.5]))
            ),
        )
    ]
    if draw(st.integers(0, 4)) == 0:
        roles.append(
            Role(name=SERVER, min=0, max=4, demand=Resources(gpus=draw(st.integers(0, 1)), cpus=1.0))
        )
    types = draw(st.sampled_from([(), (), ("t4",), ("a100",)]))
    return JobSpec(
        name="job",
        roles=tuple(roles),
        preemptible=draw(st.integers(0, 3)) > 0,
        mixed=draw(st.integers(0, 5)) == 0,
        gpu_types=types,
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    kinds = draw(st.sampled_from([("gpu",), ("t4", "a100")]))
    return Cluster(
        nodes=tuple(
            Node(
                name=f"n{number}",
                gpus=draw(st.sampled_from([1, 2, 4, 4, 8])),
                gpu_type=draw(st.sampled_from(kinds)),
                cpus=draw(st.sampled_from([None, 4.0])),
                link_bytes_per_s=draw(st.sampled_from([None, 1e9, 5e9])),
            )
            for number in range(draw(st.integers(1, 6)))
        )
    )


@given(
    cluster=clusters(),
    jobs=st.lists(specs(), min_size=1, max_size=8),
    data=st.data(),
    bandwidth=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_ever_promised_twice(
    cluster: Cluster, jobs: list[JobSpec], data: st.DataObject, bandwidth: bool
) -> None:
    """Any nodes and jobs, GPUs and CPUs, one or several per replica, drained nodes: ``World.decide`` checks what the
    scheduler checks. Who may not move does not, and the same question has the same answer."""
    world, placer = World(cluster), TidyPlacer(bandwidth=bandwidth)
    for number, spec in enumerate(jobs):
        world.submit(f"j{number}", spec)
    for _ in range(data.draw(st.integers(1, 4))):
        wanted: dict[str, Allocation] = {}
        for name, job in world.state.jobs.items():
            if job.phase in HOLDING and not job.spec.preemptible:
                continue
            if data.draw(st.booleans()):
                counts = [
                    data.draw(st.integers(0 if i else 1, 6 if not i else 3))
                    for i in range(len(job.spec.roles))
                ]
                shares = [
                    Share(count=count, role=role.name)
                    for role, count in zip(job.spec.roles, counts, strict=True)
                    if count
                ]
                wanted[name] = Allocation(shares=tuple(shares) if data.draw(st.integers(0, 3)) else ())
        before = {name: job.target for name, job in world.state.jobs.items()}
        found = placer.place(world.state, wanted)
        assert placer.place(world.state, wanted) == found
        assert {name: job.target for name, job in world.state.jobs.items()} == before
        for name in found.keys() - wanted.keys():
            job = world.state.jobs[name]
            assert len(job.spec.roles) == 1
            assert job.spec.preemptible or job.phase not in HOLDING
            assert [s.replicas for s in found[name].slots] == [s.replicas for s in before[name].slots]
        for name, placement in found.items():
            if placement and name in wanted:
                for share in wanted[name].shares:
                    assert placement.count(share.role) == share.count
        world.decide(found)
        for name in world.state.jobs:
            if data.draw(st.booleans()):
                world.start(name)
        if data.draw(st.integers(0, 5)) == 0:
            world.tell(NodeDrained(node="n0"))


def test_a_job_that_is_to_stay_makes_no_room() -> None:
    world = World("2x4")
    world.run("a", {"n0": 2})
    world.run("b", {"n1": 2})
    world.submit("new")
    free, kept = (TidyPlacer().place(world.state, {"new": workers(4)}, fixed) for fixed in ((), ("a", "b")))
    assert set(free) == {"a", "new"} or set(free) == {"b", "new"}
    assert len(kept["new"].slots) == 2  # in pieces, for nobody may move
    assert set(kept) == {"new"}
