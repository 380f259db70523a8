"""Who slows whom down: crowds, links of different speed, and what the simulated executor makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Cluster, Node, Placement
from coadapt.simulation.engine.interference import (
    MEASURED_LINK,
    NONE,
    Crowds,
    FlatInterference,
    Link,
    LinkSharing,
    Slowdown,
)
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import ServedTraining
from coadapt.simulation.truth.parameter_server_speed import TEN_GIGABIT
from tests.builders import a_trained_job, on, simulated
from tests.scenarios.told import Script, told

ACROSS = on("n0", "n1")
crowds = st.lists(st.integers(1, 5), max_size=4)


def test_the_reference_is_fifty_gigabit() -> None:
    assert MEASURED_LINK * 8 == 50e9


@given(crowds, st.floats(0.0, 0.9))
def test_flat_interference_looks_at_the_crowd_and_nothing_else(crowd: list[int], share: float) -> None:
    """As published: whoever meets another is slowed by the share, whatever links there are."""
    expected = Slowdown(rate=1 - share) if max(crowd, default=0) > 1 and share else NONE
    for speed in (None, 1e8):
        assert FlatInterference(share).slowdown([Link(n, speed) for n in crowd]) == expected


@given(crowds)
def test_link_sharing_without_speeds_counts_the_most_crowded_node(crowd: list[int]) -> None:
    most = max(crowd, default=1)
    assert LinkSharing().slowdown([Link(n) for n in crowd]) == (NONE if most == 1 else Slowdown(sync=most))


@pytest.mark.parametrize(
    ("links", "sync"),
    [
        ([], 1.0),
        ([Link(1, MEASURED_LINK), Link(1)], 1.0),
        ([Link(1, MEASURED_LINK / 2), Link(1)], 2.0),
        ([Link(1, MEASURED_LINK / 5), Link(1, MEASURED_LINK / 2)], 5.0),
        ([Link(2, MEASURED_LINK / 5), Link(1, MEASURED_LINK / 5)], 10.0),
        # the least share decides: a third of a full link is less than half a link alone
        ([Link(3), Link(1, MEASURED_LINK / 2)], 3.0),
        ([Link(1, 2 * MEASURED_LINK), Link(1, 4 * MEASURED_LINK)], 0.5),
        ([Link(2, 2 * MEASURED_LINK), Link(1, 2 * MEASURED_LINK)], 1.0),
    ],
)
def test_link_sharing_takes_the_slowest_share_of_a_link(links: list[Link], sync: float) -> None:
    assert LinkSharing().slowdown(links) == Slowdown(sync=sync)


def test_link_sharing_counts_from_what_the_job_was_measured_over() -> None:
    assert LinkSharing().slowdown([Link(1, 1e9)], 1e9) == NONE
    assert LinkSharing().slowdown([Link(1)], 1e9) == NONE
    assert LinkSharing().slowdown([Link(2, 5e8)], 1e9) == Slowdown(sync=4.0)
    assert ServedTraining.measured_link == TEN_GIGABIT


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sets(st.sampled_from("xyz"))), max_size=20))
def test_crowds_are_those_of_the_last_placements(moves: list[tuple[str, set[str]]]) -> None:
    """Against counting anew; and whoever's crowd has changed is named."""
    known, where = Crowds(), dict[str, set[str]]()
    for job, nodes in moves:
        before = {name: known.around(name) for name in "abcd"}
        where[job] = nodes if len(nodes) > 1 else set()
        named = known.move(job, on(*sorted(nodes)) if nodes else Placement())
        for name in "abcd":
            mine = sorted(where.get(name, ()))
            expected = [(node, sum(node in other for other in where.values())) for node in mine]
            assert known.around(name) == expected
            assert known.around(name) == before[name] or name in named
        assert named == sorted(named)


def _ends(*gigabit: float | None, jobs: int = 1, late_s: float = 0.0) -> list[str]:
    """200 steps of 0.5 s of compute and 1 s of synchronisation over two nodes with such links."""
    nodes = tuple(
        Node(name=f"n{i}", gpus=2, link_bytes_per_s=None if g is None else g * 1e9 / 8)
        for i, g in enumerate(gigabit)
    )
    names = "ab"[:jobs]
    submitted = [(late_s * i, name, a_trained_job(2)) for i, name in enumerate(names)]
    policy = Script(*((late_s * i, {name: ACROSS}) for i, name in enumerate(names)))
    records, _ = simulated(
        submitted, Cluster(nodes=nodes), policy, change_cost=constant(0), interference=LinkSharing()
    )
    return [line for line in told(records) if "succeeded" in line]


@pytest.mark.parametrize(
    ("links", "end"),
    [
        ((None, None), 300),
        ((50, 50), 300),
        ((25, 50), 500),
        ((25, 25), 500),
        ((None, 10), 1100),
        ((100, 100), 200),
        ((100, None), 300),
    ],
)
def test_synchronisation_takes_as_long_as_the_slowest_link_makes_it(
    links: tuple[float | None, ...], end: int
) -> None:
    """200 x (0.5 + 50 / slowest): from 200 s on links of 100 Gbit/s to 1100 s over one of 10."""
    assert _ends(*links) == [f"{end} succeeded a"]


def test_a_crowd_on_slow_links_takes_the_product() -> None:
    """Alone a step takes 2.5 s over 25 Gbit/s: 60 by second 150. With b there it takes 4.5 s: a's other 140 end at 780, when
    b has done 140 as well; b's last 60 take 150 s: 930."""
    assert _ends(25, 25, jobs=2, late_s=150.0) == ["780 succeeded a", "930 succeeded b"]
