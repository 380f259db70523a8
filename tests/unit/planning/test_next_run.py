"""A short run is worth what it may save: counted by hand on forecasts of a few options."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from coadapt.planning.next_run import worth_running
from coadapt.planning.option_outlook import Columns, Passes
from coadapt.planning.planners.exact import ExactPlanner
from coadapt.planning.problem import Evidence, Option, Question, ShortRun
from coadapt.prediction._base import FloatArray


class Told:
    """Pass times and their spreads as given; ten passes to any target."""

    def __init__(self, pass_s: list[float], sd: list[float]) -> None:
        self._pass_s, self._sd = np.array(pass_s), np.array(sd)

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        return self._pass_s, self._sd

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        return Passes(np.full(len(batch), 10.0), np.zeros(len(batch)), np.ones(len(batch)))

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        return np.full(len(batch), 10.0)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.full(len(batch), 0.9), np.zeros(len(batch))


OPTIONS = [Option(gpu_type="t4", replicas=k, nodes=1, batch=64 * k) for k in (1, 2, 4)]
#: 100 s of training on four GPUs: 400 GPU-seconds.
KNOWN = 10.0


def _worth(told: Told, **asked: object) -> tuple[int | None, ShortRun | None]:
    question = Question(**{"target": 0.9, "deadline_s": 200.0, **asked})  # type: ignore[arg-type]
    plan = ExactPlanner(told).plan(question, OPTIONS, Evidence(), np.random.default_rng(0))
    return plan.chosen, worth_running(plan, told)


def test_an_option_that_may_be_far_cheaper_is_worth_a_run() -> None:
    # one GPU: 18 s a pass, give or take a factor two: 180 of 200 s, so nobody is sure; if it holds it costs a half at most
    chosen, found = _worth(Told([18.0, 30.0, KNOWN], [0.7, 0.001, 0.001]))
    assert chosen == 2
    assert found is not None
    assert found.row == 0
    # it holds the limits if a pass takes less than 20 s but for the 2% that a run leaves open
    sure = 20.0 * np.exp(-1.2816 * 0.02)
    assert found.likely == pytest.approx(float(ndtr(np.log(sure / 18.0) / 0.7)), abs=0.05)
    assert found.saves is not None
    assert 0.5 * found.likely < found.saves < found.likely


def test_nothing_is_worth_a_run_where_all_is_known() -> None:
    assert _worth(Told([18.0, 30.0, KNOWN], [0.001] * 3)) == (0, None)
    assert _worth(Told([50.0, 40.0, KNOWN], [0.001] * 3)) == (2, None)


def test_an_option_that_cannot_save_enough_is_not_worth_a_run() -> None:
    # two GPUs may be 20.5 s, within 200 s one time in a hundred
    chosen, found = _worth(Told([90.0, 20.5, KNOWN], [0.001, 0.01, 0.001]))
    assert (chosen, found) == (2, None)


def test_where_nothing_holds_a_run_is_worth_its_chance_to_find_what_does() -> None:
    chosen, found = _worth(Told([18.0, 30.0, 25.0], [0.7, 0.001, 0.001]))
    assert chosen is None
    assert found is not None
    assert (found.row, found.saves) == (0, None)
    assert 0.3 < found.likely < 0.7


def test_the_best_metric_is_not_asked_about() -> None:
    chosen, found = _worth(Told([18.0, 30.0, KNOWN], [0.7] * 3), objective="metric", target=None)
    assert (chosen is not None, found) == (True, None)


def test_time_is_saved_as_cost_is() -> None:
    chosen, found = _worth(Told([40.0, 11.0, KNOWN], [0.001, 0.5, 0.001]), objective="time")
    assert chosen == 2
    assert found is not None
    assert found.row == 1


def test_the_chosen_option_may_be_unsure_itself() -> None:
    # it would be run anyhow; what another may save counts against what it costs in the mean
    chosen, found = _worth(Told([18.0, 30.0, KNOWN], [0.9, 0.001, 0.4]), deadline_s=400.0)
    assert chosen == 2
    assert found is not None
    assert found.row == 0
