"""Runs that make all the passes they are told: how many these are, and that time, cost and chance are of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.special import ndtr

from coadapt.model.interval import Interval
from coadapt.planning.option_choice import relaxed
from coadapt.planning.option_outlook import PassesToRun, passes_to_run
from coadapt.planning.planners import ExactPlanner
from coadapt.planning.problem import Question
from coadapt.planning.replan import Progress, replan
from coadapt.testing.planners import evidence, options


def tell(
    *, limit_s: float = np.inf, confidence: float = 0.9, needed_sd: float = 0.1, sd: float = 0.05
) -> PassesToRun:
    one = np.ones(1)
    return passes_to_run(
        needed=20 * one,
        needed_sd=needed_sd * one,
        reached=one,
        per_pass_s=3 * one,
        per_pass_sd=sd * one,
        setup_s=10.0,
        run_sd=0.0,
        limit_s=limit_s * one,
        confidence=confidence,
        whole=True,
    )


def chance(passes: float, limit_s: float, needed_sd: float, sd: float) -> float:
    """By hand."""
    train = 3 * passes
    spread = sd * train / (10 + train)
    return float(ndtr(np.log(passes / 20) / needed_sd) * ndtr(np.log(limit_s / (10 + train)) / spread))


def test_without_a_limit_the_confidence_alone_says_how_many() -> None:
    found = tell()
    assert found.passes[0] == np.ceil(20 * np.exp(1.2816 * 0.1))
    assert found.met[0] >= 0.9


@given(limit=st.floats(40, 200), needed_sd=st.floats(0.02, 0.4), sd=st.floats(0.01, 0.3))
@settings(max_examples=80, deadline=None)
def test_the_confidence_is_reached_with_few_passes_or_not_at_all(
    limit: float, needed_sd: float, sd: float
) -> None:
    passes = tell(limit_s=limit, needed_sd=needed_sd, sd=sd).passes[0]
    by_hand = {n: chance(n, limit, needed_sd, sd) for n in range(15, 90)}
    good = [n for n, at in by_hand.items() if at >= 0.9]
    if by_hand.get(int(passes), 0.0) >= 0.9:
        assert passes <= 1.25 * good[0] + 1
    else:
        # what is tried are eight shares of the doubt: what is missed is missed narrowly
        assert not good or max(by_hand.values()) < 0.92


@given(needed_sd=st.floats(0.02, 0.4), sd=st.floats(0.01, 0.3))
@settings(max_examples=40, deadline=None)
def test_the_limit_that_is_said_to_do_does(needed_sd: float, sd: float) -> None:
    least = tell(limit_s=1.0, needed_sd=needed_sd, sd=sd).least_s[0]
    passes = tell(limit_s=least * 1.0001, needed_sd=needed_sd, sd=sd).passes[0]
    assert chance(passes, least * 1.0001, needed_sd, sd) >= 0.9 - 1e-6


QUESTION = Question(target=0.9, deadline_s=400.0, stops=False, prices={"t4": 3.6})


def test_time_cost_and_metric_are_of_the_passes_that_are_told() -> None:
    plan = ExactPlanner().plan(QUESTION, options(), evidence(), np.random.default_rng(0))
    stopping = ExactPlanner().plan(
        replace(QUESTION, stops=True), options(), evidence(), np.random.default_rng(0)
    )
    by_option = {row.option: row for row in stopping.rows}
    assert plan.chosen is not None
    for row in plan.rows:
        other = by_option[row.option]
        assert row.passes == row.passes_enough >= other.passes
        assert row.passes_expected == other.passes
        assert row.total_s.value == pytest.approx(other.total_s.value / other.passes * row.passes)
        assert row.cost.value == pytest.approx(row.option.gpus * row.total_s.value * 3.6 / 3600)
        # a run that stops by itself keeps its limits at least as surely
        assert row.chance <= other.chance + 1e-6


def test_relaxations_of_whole_runs_really_help() -> None:
    question = replace(QUESTION, deadline_s=60.0)

    def again(changed: Question, others):  # type: ignore[no-untyped-def]
        return ExactPlanner().plan(changed, others, evidence(), np.random.default_rng(0))

    plan = relaxed(again(question, options()), again, 0.5)
    assert plan.chosen is None
    found = {each.limit: each for each in plan.relaxations}
    assert again(replace(question, deadline_s=found["deadline"].value), options()).chosen is not None
    assert again(replace(question, target=found["target"].value), options()).chosen is not None
    assert found["target"].text.startswith("with a target of metric>=")


def test_a_whole_run_is_replanned_by_all_its_passes() -> None:
    plan = ExactPlanner().plan(QUESTION, options(), evidence(), np.random.default_rng(0))
    row = plan.row
    pass_s = row.total_s.value / row.passes
    where = Progress(option=row.option, passes=1, elapsed_s=pass_s, pass_s=Interval(pass_s, pass_s, pass_s))
    assert replan(plan, where).finish_s.value == pytest.approx(row.total_s.value)


def test_a_machine_that_differs_from_run_to_run_makes_intervals_wider_and_chances_smaller() -> None:
    steady = ExactPlanner().plan(QUESTION, options(), evidence(), np.random.default_rng(0))
    shaky = ExactPlanner().plan(
        replace(QUESTION, run_sd=0.3), options(), evidence(), np.random.default_rng(0)
    )
    for one, other in zip(steady.rows, shaky.rows, strict=True):
        if one.passes == other.passes:
            assert other.total_s.upper / other.total_s.low > one.total_s.upper / one.total_s.low
    assert max(row.chance for row in shaky.rows) <= max(row.chance for row in steady.rows)
