"""What a planner pays that knows everything but for an error of known size: how exactly must one know to pay only 5% over the optimum?

Run: python -m benchmarks.plan_limit

Our planner, on the cost questions of ``plan_runs``, with the truth for a forecast: passes to the target off by a normal error in ln per batch size, or
pass times per option, of a spread that the planner knows exactly. No sample, no model: what is paid is the price of the error alone, for a planner that holds the limits with
90%. Ten draws of the errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cells import cell, source_hash
from benchmarks.plan_runs import _SOURCES, judged, optimum, questions
from benchmarks.plan_truth import Truth, truth_of
from benchmarks.prediction_samples import TASKS
from benchmarks.smoke import either, few
from coadapt.planning.option_outlook import Columns, Passes
from coadapt.planning.planners.exact import ExactPlanner
from coadapt.planning.problem import Evidence
from coadapt.prediction._base import FloatArray

#: Spread of ln passes and of ln pass time.
ERRORS = (
    (0.01, 0.0),
    (0.02, 0.0),
    (0.03, 0.0),
    (0.05, 0.0),
    (0.1, 0.0),
    (0.0, 0.02),
    (0.0, 0.05),
    (0.02, 0.02),
)
_DRAWS = 10
_LEAST = 1e-6


class Off:
    """Implements ``Forecast``: the truth, off by errors of known spread."""

    def __init__(self, truth: Truth, passes_sd: float, time_sd: float, rng: np.random.Generator) -> None:
        self._truth, self._passes_sd, self._time_sd = truth, passes_sd, time_sd
        self._passes = {batch: float(np.exp(passes_sd * rng.normal())) for batch in truth.curves}
        self._times = {option: float(np.exp(time_sd * rng.normal())) for option in truth.options}

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        seconds = [self._truth.pass_s[option] * self._times[option] for option in columns.options]
        return np.array(seconds), np.full(len(seconds), max(self._time_sd, _LEAST))

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        true = [self._truth.passes_to(int(size), target) for size in batch]
        off = [passes * self._passes[int(size)] for (passes, _), size in zip(true, batch, strict=True)]
        reached = np.array([float(each) for _, each in true])
        return Passes(np.array(off), np.full(len(off), max(self._passes_sd, _LEAST)), reached)

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """Not asked: every question has a target."""
        raise NotImplementedError

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> None:
        """See ``Forecast``: not needed for a target."""
        return


def paid(task: str, passes_sd: float, time_sd: float) -> list[tuple[float, bool]]:
    """Over the optimum, and whether the limits hold, per question and draw."""
    sources = source_hash(_SOURCES, setting=("plan_truth.py", "plan_runs.py", "plan_limit.py"))

    def compute() -> dict[str, Any]:
        truth, found = truth_of(task), []
        asked = [question for about, question in questions(truth) if about["objective"] == "cost"]
        best = [optimum(truth, question) for question in asked]
        for seed in range(either(1, _DRAWS)):
            forecast = Off(truth, passes_sd, time_sd, np.random.default_rng(seed))
            for question, least in zip(asked, best, strict=True):
                plan = ExactPlanner(forecast).plan(
                    question, truth.options, Evidence(), np.random.default_rng(0)
                )
                result = judged(truth, question, plan.row.option)
                found.append([result["value"] / least - 1, result["in_time"] and result["reached"]])
        return {"paid": found}

    arguments = {"task": task, "passes": passes_sd, "time": time_sd}
    return [
        (float(over), bool(held)) for over, held in cell("plan-limit", arguments, sources, compute)["paid"]
    ]


def main() -> None:
    """Prints the table; promises nothing."""
    print(
        f"{'passes':>8}{'pass time':>11}"
        + "".join(f"{task:>13}" for task in few(TASKS))
        + f"{'all':>8}{'limits broken':>15}"
    )
    tasks = few(TASKS)
    for passes_sd, time_sd in few(ERRORS):
        by_task = [paid(task, passes_sd, time_sd) for task in tasks]
        every = [each for some in by_task for each in some]
        print(
            f"{f'±{passes_sd:.0%}':>8}{f'±{time_sd:.0%}':>11}"
            + "".join(f"{_mean(some):>12.1f}%" for some in by_task)
            + f"{_mean(every):>7.1f}%{np.mean([not held for _, held in every]):>14.1%}"
        )


def _mean(paid_: list[tuple[float, bool]]) -> float:
    return 100 * float(np.mean([over for over, held in paid_ if held]))


if __name__ == "__main__":
    main()
