"""Resources, nodes and the shorthand of clusters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.model import NOWHERE, Node, Resources, format_cluster, gpus_of, parse_cluster, workers
from tests.builders import a_job, on

groups = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["", ":t4", ":a100"]))


@given(st.lists(groups, min_size=1, max_size=4))
def test_shorthand_of_a_cluster_is_read_back(parts: list[tuple[int, int, str]]) -> None:
    cluster = parse_cluster(",".join(f"{n}x{g}{t}" for n, g, t in parts))
    assert cluster.gpus == sum(n * g for n, g, _ in parts)
    assert parse_cluster(format_cluster(cluster)) == cluster
    assert sum(cluster.gpus_by_type().values()) == cluster.gpus


def test_plus_joins_groups_as_a_comma_does() -> None:
    assert parse_cluster("6x4:t4+2x8:a100") == parse_cluster("6x4:t4,2x8:a100")


@pytest.mark.parametrize("text", ["", "4", "0x4", "4x0", "4x", "axb", "4x4:", "1000000x2"])
def test_wrong_shorthand_is_one_clear_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_cluster(text)
    assert "\n" not in str(caught.value)


def test_limit_is_infinite_where_a_trace_says_nothing_and_zero_for_an_extra_not_offered() -> None:
    node = Node(name="n", gpus=1, cpus=4.0, extras={"fpga": 2.0})
    assert (node.limit("cpus"), node.limit("memory_bytes")) == (4.0, math.inf)
    assert (node.limit("fpga"), node.limit("tape")) == (2.0, 0.0)


def test_others_lists_what_is_asked_for_besides_gpus() -> None:
    demand = Resources(gpus=2, cpus=1.5, extras={"fpga": 1.0})
    assert dict(demand.others(2)) == {"cpus": 3.0, "fpga": 2.0}
    assert Resources(gpus=3).only_gpus()
    assert not demand.only_gpus()


def test_placement_counts_workers_and_gpus() -> None:
    placement = on(("n0", 2), "n1")
    assert (placement.replicas, placement.nodes, placement.shape) == (3, 2, (2, 1))
    assert gpus_of(placement, a_job(3, per_replica=2)) == 6
    assert not NOWHERE
    assert not workers(0)
    assert workers(2).workers == 2
