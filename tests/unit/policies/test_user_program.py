"""The division of GPUs between parties, against all divisions there are."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.policies.coadapt import user_program
from coadapt.policies.coadapt.knapsack import Problem
from coadapt.policies.coadapt.user_program import solve_for_parties

Floats = npt.NDArray[np.float64]
SIZE = np.array([0, 1, 2, 4])


def a_problem(value: Floats, capacity: int) -> Problem:
    return Problem(value, np.zeros(len(SIZE), dtype=np.int_), SIZE, (capacity,))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 4))
def test_every_party_does_as_well_as_alone_on_its_target_and_nothing_better_was_left(
    seed: int, capacity: int, jobs: int
) -> None:
    rng = np.random.default_rng(seed)
    value = np.concatenate([np.zeros((jobs, 1)), np.cumsum(rng.uniform(0.1, 2.0, (jobs, 3)), axis=1)], axis=1)
    parties = [("a", "b")[n % 2] for n in range(jobs)]
    rows = {name: [n for n in range(jobs) if parties[n] == name] for name in "ab"}
    targets = {"a": int(rng.integers(0, capacity + 1))}
    targets["b"] = int(rng.integers(0, capacity - targets["a"] + 1))
    choice = solve_for_parties(a_problem(value, capacity), value, parties, targets).choice
    alone = {name: [best(value[rows[name]], gpus) for gpus in range(capacity + 1)] for name in "ab"}
    reached = {name: sum(float(value[n, choice[n]]) for n in rows[name]) for name in "ab"}
    assert SIZE[choice].sum() <= capacity
    for name in "ab":
        assert reached[name] >= alone[name][targets[name]] - 1e-9
    divisions = [(a, capacity - a) for a in range(targets["a"], capacity - targets["b"] + 1)]
    assert sum(reached.values()) >= max(alone["a"][a] + alone["b"][b] for a, b in divisions) - 1e-9


def best(value: Floats, gpus: int) -> float:
    """The most that these jobs are worth on so many GPUs, by trying everything."""
    choices = product(range(len(SIZE)), repeat=len(value))
    fitting = [each for each in choices if sum(int(SIZE[o]) for o in each) <= gpus]
    return max(sum(float(value[n, o]) for n, o in enumerate(each)) for each in fitting)


def test_within_a_party_the_private_value_decides_and_says_nothing_about_its_size() -> None:
    public = np.array([[0.0, 1.0, 1.2, 1.3], [0.0, 1.0, 1.2, 1.3], [0.0, 1.0, 1.2, 1.3]])
    private = public.copy()
    private[1, 1:] += 100.0
    answer = solve_for_parties(a_problem(public, 2), private, ["a", "a", "b"], {"a": 1, "b": 1})
    assert answer.choice.tolist() == [0, 1, 1]


def test_several_types_reach_the_targets() -> None:
    size, kind = np.array([0, 1, 2, 1, 2]), np.array([0, 0, 0, 1, 1])
    value = np.array([[0.0, 5.0, 9.0, 5.0, 9.0]] * 4 + [[0.0, 0.1, 0.2, 0.1, 0.2]] * 2)
    parties = ["a"] * 4 + ["b"] * 2
    problem = Problem(value, kind, size, (2, 2))
    answer = solve_for_parties(problem, value, parties, {"a": 2, "b": 2})
    had = {
        name: sum(int(size[o]) for o, p in zip(answer.choice, parties, strict=True) if p == name)
        for name in "ab"
    }
    assert had == {"a": 2, "b": 2}


@pytest.mark.parametrize(("capacity", "exactly"), [(64, True), (5000, False)])
@pytest.mark.parametrize("alike", [True, False])
def test_knapsacks_are_counted_by_parties_however_large_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capacity: int, exactly: bool, alike: bool
) -> None:
    """One for each party, one over all; another within a party only where other values count there."""
    calls = {"solve": 0, "ByCapacity": 0}
    for name in calls:
        original = getattr(user_program, name)

        def counted(problem: Problem, original: Any = original, name: str = name) -> Any:
            calls[name] += 1
            return original(problem)

        monkeypatch.setattr(user_program, name, counted)
    count = 12
    value = np.cumsum(np.concatenate([np.zeros((count, 1)), np.full((count, 3), 0.5)], axis=1), axis=1)
    parties = [f"u{n}" for n in range(count)]
    private = value if alike else 2 * value
    solve_for_parties(a_problem(value, capacity), private, parties, dict.fromkeys(parties, 1))
    assert calls == {
        "solve": (0 if exactly else count + 1) + (0 if alike else count),
        "ByCapacity": count if exactly else 0,
    }
