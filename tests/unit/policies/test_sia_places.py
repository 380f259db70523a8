"""Placement after Sia's program: never split, never more than a node has, moved only where it must be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import NOWHERE, Placement, Slot
from coadapt.policies.sia import Wish, place


def at(*shares: tuple[str, int]) -> Placement:
    return Placement(slots=tuple(Slot(node=node, replicas=count, gpu_type="t4") for node, count in shares))


def used(placed: dict[str, Placement], unit: int = 1) -> dict[str, int]:
    found: dict[str, int] = {}
    for placement in placed.values():
        for slot in placement.slots:
            found[slot.node] = found.get(slot.node, 0) + slot.replicas * unit
    return found


@st.composite
def full_clusters(draw: st.DrawFn) -> tuple[list[Wish], dict[str, int]]:
    """Sizes that are powers of two or whole nodes and fill up to the whole cluster; some jobs sit somewhere."""
    size, nodes = draw(st.sampled_from([4, 8])), draw(st.integers(1, 4))
    free = {f"n{i}": size for i in range(nodes)}
    sizes = [2**i for i in range(size.bit_length())] + [size * k for k in range(2, nodes + 1)]
    room, left, wishes = size * nodes, dict(free), []
    while room and draw(st.integers(0, 9)):
        gpus = draw(st.sampled_from([s for s in sizes if s <= room]))
        room -= gpus
        here = [n for n, some in left.items() if some >= gpus]
        where = NOWHERE
        if gpus <= size and here and draw(st.booleans()):
            node = draw(st.sampled_from(here))
            left[node] -= gpus
            where = at((node, gpus))
        wishes.append(Wish(f"j{len(wishes)}", gpus, 1, where))
    return wishes, free


@settings(max_examples=150, deadline=None)
@given(full_clusters())
def test_place_fits_all_without_splitting_where_sizes_are_powers_of_two(
    drawn: tuple[list[Wish], dict[str, int]],
):
    wishes, free = drawn
    placed = place(wishes, free, "t4")
    size = next(iter(free.values()))
    assert {wish.job for wish in wishes} == set(placed)
    assert all(gpus <= free[node] for node, gpus in used(placed).items())
    for wish in wishes:
        assert placed[wish.job].replicas == wish.gpus
        assert placed[wish.job].nodes == max(wish.gpus // size, 1)
        assert [s.node for s in placed[wish.job].slots] == sorted(s.node for s in placed[wish.job].slots)


@settings(max_examples=100, deadline=None)
@given(full_clusters())
def test_place_moves_nobody_when_everybody_may_stay(drawn: tuple[list[Wish], dict[str, int]]):
    wishes, free = drawn
    placed = place(wishes, free, "t4")
    again = [wish._replace(at=placed[wish.job]) for wish in wishes]
    assert place(again, free, "t4") == placed


def test_place_takes_room_that_nobody_claims():
    wishes = [Wish("new", 2, 1, NOWHERE), Wish("old", 2, 1, at(("n0", 2)))]
    placed = place(wishes, {"n0": 4, "n1": 2}, "t4")
    assert placed == {
        "old": at(("n0", 2)),
        "new": at(("n0", 2)),
    }  # tightest: n1 stays whole only if n0 is full
    placed = place([Wish("new", 4, 1, NOWHERE), wishes[1]], {"n0": 4, "n1": 4}, "t4")
    assert placed == {"old": at(("n0", 2)), "new": at(("n1", 4))}


def test_place_drives_away_the_fewest_gpus():
    wishes = [
        Wish("whole", 4, 1, NOWHERE),
        Wish("two", 2, 1, at(("n0", 2))),
        Wish("one", 1, 1, at(("n1", 1))),
    ]
    placed = place(wishes, {"n0": 4, "n1": 4}, "t4")
    assert placed["whole"] == at(("n1", 4))
    assert placed["two"] == at(("n0", 2))
    assert placed["one"] == at(("n0", 1))


def test_place_spreads_only_what_fits_no_node():
    placed = place([Wish("odd", 3, 1, NOWHERE)], {"n0": 2, "n1": 1, "n2": 2}, "t4")
    assert placed["odd"].replicas == 3
    assert placed["odd"].nodes == 2
    assert place([Wish("wide", 6, 1, NOWHERE)], {"n0": 2, "n1": 2}, "t4") == {}


def test_place_keeps_the_gpus_of_a_replica_together():
    placed = place([Wish("pairs", 4, 2, NOWHERE)], {"n0": 3, "n1": 3}, "t4")
    assert placed["pairs"] == at(("n0", 1), ("n1", 1))
    assert place([Wish("pairs", 6, 2, NOWHERE)], {"n0": 3, "n1": 3}, "t4") == {}


def test_place_finds_a_new_place_where_the_old_one_has_gone():
    wishes = [Wish("a", 2, 1, at(("n0", 2)))]
    assert place(wishes, {"n0": 1, "n1": 2}, "t4") == {"a": at(("n1", 2))}


def test_place_drives_nobody_of_the_same_size_away():
    wishes = [Wish("new", 2, 1, NOWHERE), Wish("old", 2, 1, at(("n0", 2)))]
    placed = place(wishes, {"n0": 2, "n1": 1, "n2": 1}, "t4")
    assert placed == {"old": at(("n0", 2)), "new": at(("n1", 1), ("n2", 1))}
