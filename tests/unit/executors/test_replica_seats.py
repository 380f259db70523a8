from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.executors.gang.replica_seats import change, generations, possible, seated
from coadapt.model import Placement, Slot

NODES = ("n0", "n1", "n2")


def placed(**replicas: int) -> Placement:
    return Placement(
        slots=tuple(
            Slot(node=node, replicas=count, gpu_type="t4") for node, count in replicas.items() if count
        )
    )


@pytest.mark.parametrize(
    ("before", "after", "staying", "leaving", "joining"),
    [
        (["n0"], placed(n0=2, n1=1), [0], [], ["n0", "n1"]),  # grow
        (["n0", "n0", "n1"], placed(n1=1), [2], [0, 1], []),  # shrink: the first leaves
        (["n0", "n0"], placed(n0=1, n1=1), [0], [1], ["n1"]),  # move a part
        (["n0"], placed(n1=1), [], [0], ["n1"]),  # move all
    ],
)
def test_who_stays_leaves_and_joins(
    before: list[str], after: Placement, staying: list[int], leaving: list[int], joining: list[str]
) -> None:
    assert change(before, after) == (staying, leaving, joining)


@given(
    st.lists(st.sampled_from(NODES), min_size=1, max_size=8),
    st.dictionaries(st.sampled_from(NODES), st.integers(1, 4), min_size=1),
)
def test_change_ends_at_the_placement_and_moves_no_more_than_it_must(
    before: list[str], counts: dict[str, int]
) -> None:
    found = change(before, placed(**counts))
    stay = Counter(before[position] for position in found.staying)
    assert stay + Counter(found.joining) == Counter(counts)
    assert sorted(found.staying + found.leaving) == list(range(len(before)))
    assert stay == Counter(before) & Counter(counts)


def test_ranks_go_by_seniority_and_local_ranks_by_node() -> None:
    seats = seated(["n1", "n0", "n1"], "t4")
    assert [(s.rank, s.node, s.node_rank, s.local_rank, s.local_replicas, s.nodes) for s in seats] == [
        (0, "n1", 0, 0, 2, 2),
        (1, "n0", 1, 0, 1, 2),
        (2, "n1", 0, 1, 2, 2),
    ]


def test_first_of_every_generation_has_run_before() -> None:
    assert generations(["a"], ["b"], ["c"]) == [["a", "c"]]
    assert generations([], ["a", "b"], ["c"]) == [["a", "b", "c"], ["c"]]


def test_only_workers_with_whole_gpus_of_one_type_change_in_place() -> None:
    one, two = placed(n0=1), placed(n0=2)
    assert possible(one, two)
    assert not possible(one, Placement())
    assert not possible(one, Placement(slots=(Slot(node="n0", replicas=1, gpu_type="a100"),)))
    assert not possible(one, Placement(slots=(Slot(node="n0", replicas=1, gpu_type="t4", share=0.5),)))
    assert not possible(
        one, Placement(slots=(*one.slots, Slot(node="n0", replicas=1, gpu_type="t4", role="server")))
    )
