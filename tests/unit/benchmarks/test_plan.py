"""The comparison of planners: what is compared with what, and that nothing falls out of it unseen."""

from __future__ import annotations

import math
from typing import Any

import pytest
from benchmarks.plan import interval, rows, savings
from benchmarks.plan_runs import METHODS, OURS


def a_record(planner: str, value: float, **changes: Any) -> dict[str, Any]:
    record = {
        "planner": planner,
        "task": "bert",
        "objective": "cost",
        "share": 0.9,
        "factor": 1.6,
        "samples": 120,
        "seed": 0,
        "value": value,
        "best": 1.0,
        "in_time": True,
        "reached": True,
        "sure": True,
    }
    return {**record, **changes}


def records(**others: dict[str, Any]) -> list[dict[str, Any]]:
    """Two questions of each objective; ours costs 1, all others 2."""
    return [
        a_record(
            name,
            1.0 if name == OURS else 2.0,
            objective=objective,
            factor=factor,
            **others.get(name.replace("-", "_"), {}),
        )
        for objective in ("cost", "metric", "time")
        for factor in (1.6, 2.5)
        for name in METHODS
    ]


def test_only_questions_where_both_hold_the_limits_are_compared() -> None:
    late = a_record("random", 0.1, in_time=False)
    keys, found = savings([a_record(OURS, 1.0), late], "random")
    assert (keys, found) == ([], [])
    _, found = savings([a_record(OURS, 1.0), a_record("random", 4.0)], "random")
    assert found == [75.0]


def test_interval_counts_runs_of_one_question_as_one() -> None:
    keys = [("bert", 0.9, 1.6, samples, seed) for samples in (60, 120) for seed in range(5)]
    assert interval(keys, [5.0] * 5 + [15.0] * 5) == (10.0, 10.0)


def test_planner_that_cannot_be_compared_is_no_promise_kept() -> None:
    found = {row.what: row for row in rows(records(cynthia={"in_time": False}))}
    row = found["cost: saving over cynthia, lower end"]
    assert math.isnan(row.figure)
    assert not row.holds
    assert found["cost: saving over lb-bsp, lower end"].holds


@pytest.mark.parametrize("objective", ["cost", "metric", "time"])
def test_every_planner_has_its_row(objective: str) -> None:
    whats = [row.what for row in rows(records())]
    for name in METHODS[1:]:
        assert f"{objective}: saving over {name}, lower end" in whats
