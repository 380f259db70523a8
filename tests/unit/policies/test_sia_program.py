"""Sia's binary program: the optimum of small programs, what is never offered, and one answer for one input."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.policies.sia import Choice, solve


def cost_of(choices: list[Choice], taken: list[int]) -> int:
    return sum(choices[i].cost for i in taken)


def exhaustive(choices: list[Choice], capacity: dict[str, int]) -> int:
    """The optimum by trying everything."""
    jobs = sorted({choice.job for choice in choices})
    options = [[None, *(c for c in choices if c.job == job)] for job in jobs]
    best = 0
    for pick in itertools.product(*options):
        used = dict.fromkeys(capacity, 0)
        for choice in pick:
            if choice is not None:
                used[choice.gpu_type] += choice.gpus
        if all(used[name] <= capacity[name] for name in capacity):
            best = min(best, sum(choice.cost for choice in pick if choice is not None))
    return best


choices_of = st.lists(
    st.builds(
        Choice,
        job=st.integers(0, 3),
        gpu_type=st.sampled_from(["t4", "a100"]),
        gpus=st.sampled_from([1, 2, 3, 4, 8]),
        cost=st.integers(-12_000, 3_000),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(choices_of, st.integers(0, 8), st.integers(0, 8))
def test_solve_finds_the_optimum_within_bounds(choices: list[Choice], few: int, many: int):
    capacity = {"t4": few, "a100": many}
    taken = solve(choices, capacity, gap=0.0, nodes=10_000)
    assert taken is not None
    jobs = [choices[i].job for i in taken]
    assert len(set(jobs)) == len(jobs)
    for name, most in capacity.items():
        assert sum(choices[i].gpus for i in taken if choices[i].gpu_type == name) <= most
    assert cost_of(choices, taken) == exhaustive(choices, capacity)
    assert taken == solve(choices, capacity, gap=0.0, nodes=10_000)


def test_solve_leaves_out_what_gains_nothing():
    choices = [Choice(0, "gpu", 1, 0), Choice(1, "gpu", 1, 5), Choice(2, "gpu", 9, -5)]
    assert solve(choices, {"gpu": 8}, gap=0.0, nodes=10) == []
    assert solve([], {"gpu": 8}, gap=0.0, nodes=10) == []


def test_solve_prefers_many_small_gains_to_a_large_one():
    wide = Choice(0, "gpu", 4, -8_500)
    narrow = [Choice(job, "gpu", 1, -3_000) for job in range(1, 5)]
    assert solve([wide, *narrow], {"gpu": 4}, gap=0.0, nodes=100) == [1, 2, 3, 4]


@pytest.mark.parametrize("nodes", [1, 100])
def test_solve_keeps_capacity_also_where_its_search_is_cut_short(nodes: int):
    choices = [
        Choice(job, "gpu", gpus, -1_000 - 7 * job * gpus % 97) for job in range(30) for gpus in (1, 2, 4)
    ]
    taken = solve(choices, {"gpu": 11}, gap=0.0, nodes=nodes)
    assert taken is None or sum(choices[i].gpus for i in taken) <= 11
