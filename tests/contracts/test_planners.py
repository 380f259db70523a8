"""Every planner, by the published suite; and that ours finds what it should on a task known in full."""

from __future__ import annotations

import numpy as np
import pytest

from coadapt.planning.planners.exact import ExactPlanner
from coadapt.planning.problem import Question
from coadapt.plugins import PLANNERS
from coadapt.testing.planners import PlannerConformance, evidence, options, truth


def suite(name: str) -> type[PlannerConformance]:
    def make(self: PlannerConformance) -> object:
        if name == "bayesian":
            pytest.importorskip("optuna", reason="Optuna is not installed")
        return PLANNERS.make(name)

    return type(f"Test_{name}".replace("-", "_"), (PlannerConformance,), {"make": make})


for _name in PLANNERS:
    globals()[f"Test_{_name}".replace("-", "_")] = suite(_name)


@pytest.mark.parametrize("deadline_s", [150.0, 300.0, 1000.0])
# 0.6 is crossed just after the first sampled pass
@pytest.mark.parametrize("target", [0.6, 0.75, 0.8, 0.9])
def test_exact_is_near_the_true_optimum_and_in_time(deadline_s: float, target: float) -> None:
    question = Question(target=target, deadline_s=deadline_s, whole_passes=False)
    real = [truth(question, option) for option in options()]
    costs = [
        o.total_s * option.gpus for o, option in zip(real, options(), strict=True) if o.total_s <= deadline_s
    ]
    plan = ExactPlanner().plan(question, options(), evidence(), np.random.default_rng(0))
    if not costs:
        assert plan.chosen is None
        return
    mine = truth(question, plan.row.option)
    assert mine.total_s <= deadline_s
    assert mine.total_s * plan.row.option.gpus <= 1.15 * min(costs)
