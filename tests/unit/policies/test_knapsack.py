"""The multiple-choice knapsack: exactly, by prices, and one against the other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.policies.coadapt import knapsack
from coadapt.policies.coadapt.knapsack import Answer, Problem, exact, priced, solve


def total(problem: Problem, answer: Answer) -> float:
    """What the answer is worth; fails if it is not allowed."""
    rows = np.arange(len(problem.value))
    values = problem.value[rows, answer.choice]
    assert np.isfinite(values).all()
    used = np.zeros(len(problem.capacity))
    np.add.at(used, problem.kind[answer.choice], problem.size[answer.choice])
    assert (used <= problem.capacity).all()
    assert len(answer.price) == len(problem.capacity)
    assert min(answer.price) >= -1e-9
    return float(values.sum())


def by_trying_all(problem: Problem) -> float:
    best = -np.inf
    for options in product(range(len(problem.size)), repeat=len(problem.value)):
        used = [0] * len(problem.capacity)
        for option in options:
            used[problem.kind[option]] += problem.size[option]
        if all(u <= c for u, c in zip(used, problem.capacity, strict=True)):
            worth = sum(problem.value[row, option] for row, option in enumerate(options))
            best = max(best, worth)
    return best


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Anything: gains, losses, options that are not allowed or larger than all there is, types without GPUs."""
    types = draw(st.integers(1, 2))
    options = draw(
        st.lists(st.tuples(st.integers(0, types - 1), st.integers(1, 7)), min_size=1, max_size=4, unique=True)
    )
    worth = st.one_of(st.just(-np.inf), st.floats(-5, 20), st.sampled_from([1e6, 2e6]))
    jobs = draw(st.integers(1, 4))
    value = [[0.0, *(draw(worth) for _ in options)] for _ in range(jobs)]
    return Problem(
        np.array(value),
        np.array([0, *(kind for kind, _ in options)]),
        np.array([0, *(size for _, size in options)]),
        tuple(draw(st.integers(0, 6)) for _ in range(types)),
    )


@given(problems())
@settings(max_examples=120, deadline=None)
def test_exact_is_what_trying_all_finds(problem: Problem) -> None:
    assert total(problem, exact(problem)) == pytest.approx(by_trying_all(problem), rel=1e-12, abs=1e-9)


@given(problems())
@settings(max_examples=120, deadline=None)
def test_priced_is_always_allowed_and_repeats(problem: Problem) -> None:
    best = total(problem, exact(problem))
    found = priced(problem)
    assert total(problem, found) <= best + 1e-6
    assert total(problem, found) >= 0
    again = priced(problem)
    assert (again.choice == found.choice).all()
    assert again.price == found.price


@given(problems())
@settings(max_examples=60, deadline=None)
def test_price_of_exact_is_what_the_last_gpu_adds(problem: Problem) -> None:
    answer = exact(problem)
    for kind, capacity in enumerate(problem.capacity):
        if capacity:
            fewer = tuple(c - (k == kind) for k, c in enumerate(problem.capacity))
            lost = total(problem, answer) - total(problem, exact(problem._replace(capacity=fewer)))
            assert answer.price[kind] == pytest.approx(lost, abs=1e-6)


def concave(seed: int, types: int = 1) -> Problem:
    """Jobs of all weights with speed-ups between GPUs^0.3 and GPUs^0.95, a little uneven, on up to 64 GPUs of a type."""
    rng = np.random.default_rng(seed)
    capacity = tuple(int(rng.choice([8, 16, 32, 64])) for _ in range(types))
    options = [(t, s) for t, c in enumerate(capacity) for s in (1, 2, *range(4, c + 1, 4))]
    kind, size = (np.array(each) for each in zip((0, 0), *options, strict=True))
    jobs = int(rng.integers(2, 40))
    weight, power = rng.lognormal(0, 1, jobs), rng.uniform(0.3, 0.95, jobs)
    value = (
        weight[:, None] * size ** power[:, None] * (1 + 0.5 * kind) * rng.uniform(0.97, 1, (jobs, len(size)))
    )
    most = rng.choice([1, 4, 16, 64], jobs)
    value = np.where(size <= most[:, None], value, -np.inf)
    value[:, 0] = 0.0
    return Problem(value, kind, size, capacity)


@pytest.mark.parametrize(
    ("types", "cells", "mean", "worst"),
    [(1, None, 0.9999, 0.995), (1, 3000, 0.995, 0.94), (2, None, 0.995, 0.96), (2, 3000, 0.97, 0.8)],
)
def test_priced_comes_near_exact_on_concave_curves(
    monkeypatch: pytest.MonkeyPatch, types: int, cells: int | None, mean: float, worst: float
) -> None:
    """As it is, and with next to nothing settled exactly at the end, so that prices have to do it."""
    if cells is not None:
        monkeypatch.setattr(knapsack, "_CORE_CELLS", cells)
    ratios = []
    for seed in range(60 if types == 1 else 25):
        problem = concave(seed, types)
        ratios.append(total(problem, priced(problem)) / total(problem, exact(problem)))
    assert np.mean(ratios) >= mean
    assert min(ratios) >= worst


def test_priced_comes_near_its_own_bound_on_a_large_cluster() -> None:
    """Prices prove how much could be had at most: 600 jobs, 2,000 GPUs, nothing left to try all of."""
    rng = np.random.default_rng(0)
    size = np.array([0, 1, 2, *range(4, 68, 4)])
    value = rng.lognormal(0, 1, 600)[:, None] * size ** rng.uniform(0.3, 0.95, 600)[:, None]
    value[:, 0] = 0.0
    problem = Problem(value, np.zeros_like(size), size, (2000,))
    answer = priced(problem)
    bound = (value - answer.price[0] * size).max(axis=1).sum() + answer.price[0] * 2000
    assert total(problem, answer) >= 0.999 * bound


def test_what_can_never_be_had_drives_no_price_up() -> None:
    size = np.array([0, 1, 100])
    value = np.array([[0.0, 1.0, 1e9], [0.0, 2.0, -np.inf], [0.0, 0.5, -np.inf]])
    answer = priced(Problem(value, np.zeros(3, dtype=int), size, (3,)))
    assert answer.choice.tolist() == [1, 1, 1]
    assert answer.price == (0.0,)


def test_nobody_takes_what_gains_nothing() -> None:
    size = np.array([0, 1, 2])
    problem = Problem(np.array([[0.0, 0.0, -1.0], [0.0, 1.0, 1.0]]), np.zeros(3, dtype=int), size, (8,))
    for found in (exact(problem), priced(problem)):
        assert found.choice.tolist() == [0, 1]


def test_solve_is_exact_where_that_is_cheap_and_priced_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = concave(3)
    assert (solve(problem).choice == exact(problem).choice).all()
    monkeypatch.setattr(knapsack, "EXACT_CELLS", 0)
    assert (solve(problem).choice == priced(problem).choice).all()
