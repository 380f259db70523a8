"""Conformance suite of planners: subclass it, implement ``make``, run pytest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coadapt.errors import InputError
from coadapt.planning.problem import Evidence, Option, Outcome, Plan, Planner, Question
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table

BATCHES, REPLICAS = (32, 64, 128, 256), (1, 2, 4, 8)
_EXAMPLES = 10_000


def pass_s(batch: int, replicas: int) -> float:
    """A made-up task: compute that shares out, and a step's latency that grows with replicas."""
    return _EXAMPLES / batch * (0.02 + 0.002 * batch / replicas + 0.01 * math.log2(replicas))


def metric_after(batch: int, passes: float) -> float:
    """Returns the metric of the made-up task after some passes: larger batches need more of them."""
    return 0.95 * (1 - math.exp(-passes / (4 * (1 + batch / 500))))


def options() -> list[Option]:
    """Returns all combinations of options of the made-up task."""
    return [
        Option(gpu_type="t4", replicas=k, nodes=-(-k // 4), batch=batch)
        for k in REPLICAS
        for batch in BATCHES
    ]


def evidence() -> Evidence:
    """Every option run for 4 to 30 passes, without noise."""
    epochs = [
        EpochSample(batch=o.batch, workers=o.replicas, nodes=o.nodes, epoch_s=pass_s(o.batch, o.replicas))
        for o in options()
    ]
    metrics = [
        MetricSample(batch=batch, epochs=float(passes), metric=metric_after(batch, passes))
        for batch in BATCHES
        for passes in range(4, 31, 2)
    ]
    return Evidence(
        epochs={"t4": epoch_table(epochs, gpus_per_node=4)},
        metrics=metric_table(metrics, higher_is_better=True),
    )


def truth(question: Question, option: Option) -> Outcome:
    """Returns the true outcome of a run of the made-up task."""
    target = question.target if question.target is not None else 0.0
    if target >= 0.95:
        return Outcome(30 * pass_s(option.batch, option.replicas), metric_after(option.batch, 30), False)
    passes = -4 * (1 + option.batch / 500) * math.log(1 - target / 0.95)
    return Outcome(passes * pass_s(option.batch, option.replicas), metric_after(option.batch, 30), True)


class PlannerConformance:
    """Subclass and implement ``make``."""

    def make(self) -> Planner:
        """A new planner."""
        raise NotImplementedError

    def ask(self, question: Question, seed: int = 0) -> Plan:
        """Its answer about the made-up task."""
        return self.make().plan(
            question,
            options(),
            evidence(),
            np.random.default_rng(seed),
            lambda option: truth(question, option),
        )

    @pytest.mark.parametrize("objective", ["cost", "time"])
    def test_answers_with_one_row_per_option_in_order(self, objective: str) -> None:
        question = Question(objective=objective, target=0.8, deadline_s=5000.0)  # type: ignore[arg-type]
        plan = self.ask(question)
        assert [row.option for row in plan.rows] == options()
        assert plan.row.option in options()
        assert plan.planner == self.make().name
        assert all(0 <= row.chance <= 1 for row in plan.rows)
        assert plan.chosen is None or plan.rows[plan.chosen].why == ""

    def test_same_seed_same_answer(self) -> None:
        question = Question(target=0.85, deadline_s=3000.0)
        assert self.ask(question, 7).row.option == self.ask(question, 7).row.option

    def test_an_impossible_deadline_is_an_answer_not_an_error(self) -> None:
        plan = self.ask(Question(target=0.8, deadline_s=0.001))
        assert plan.chosen is None
        assert plan.row.option in options()

    def test_a_target_above_anything_seen_is_not_promised(self) -> None:
        assert self.ask(Question(target=2.0, deadline_s=1e9)).chosen is None

    def test_nothing_to_choose_from_is_refused(self) -> None:
        with pytest.raises(InputError, match="there are no options"):
            self.make().plan(Question(target=0.8), [], evidence(), np.random.default_rng(0))

    def test_an_unpriced_gpu_is_refused(self) -> None:
        with pytest.raises(InputError, match="no price for 't4'"):
            self.ask(Question(target=0.8, prices={"a100": 2.0}))
