"""The planner's parts: questions refused, totals added up, frontier, relaxations, re-planning, LB-BSP's shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model.interval import Interval
from coadapt.planning.next_run import first_runs, next_run
from coadapt.planning.option_choice import relaxed
from coadapt.planning.option_outlook import columns_of, look
from coadapt.planning.plan_api import Offer, batch_sizes, options_of
from coadapt.planning.planners import ExactPlanner
from coadapt.planning.problem import Evidence, Option, Plan, Question, check
from coadapt.planning.replan import Progress, replan
from coadapt.prediction._base import FloatArray
from coadapt.testing.planners import evidence, options


class Told:
    """A forecast that is told: a pass takes 100 s / replicas^0.8, ``passes`` of them reach anything."""

    def __init__(self, passes: float = 10.0, sd: float = 0.1) -> None:
        self.passes, self.sd = passes, sd

    def pass_s(self, columns) -> tuple[FloatArray, FloatArray]:  # type: ignore[no-untyped-def]
        return 100 / columns.replicas**0.8, np.full(len(columns.batch), self.sd)

    def passes_to(self, target, batch):  # type: ignore[no-untyped-def]
        from coadapt.planning.option_outlook import Passes

        return Passes(np.full(len(batch), self.passes), np.zeros(len(batch)), np.ones(len(batch)))

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        return np.full(len(batch), epochs)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.minimum(passes / 20, 1.0), np.zeros(len(batch))


def ask(question: Question, passes: float = 10.0, sd: float = 0.1) -> Plan:
    return ExactPlanner(Told(passes, sd)).plan(question, options(), Evidence(), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(target=0.9, confidence=1.0), "confidence 1 must be at least 0.5 and below 1"),
        (Question(target=0.9, deadline_s=-1.0), "deadline -1 must be a positive number"),
        (Question(target=0.9, budget=0.0), "budget 0 must be a positive number"),
        (Question(target=float("nan")), "target nan must be a number"),
        (Question(), "amount of training is unknown"),
        (Question(objective="metric"), "needs a deadline or a budget"),
        (Question(target=0.9, deadline_s=10.0, setup_s=20.0), "shorter than the set-up"),
    ],
)
def test_a_question_that_contradicts_itself_is_refused(question: Question, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(question, options())


def test_total_and_cost_add_up() -> None:
    question = Question(target=0.5, setup_s=7.0, validation_s=2.0, checkpoint_s=1.0, prices={"t4": 3.6})
    option = Option(gpu_type="t4", replicas=4, nodes=1, batch=64)
    outlook = look(question, columns_of(question, [option]), Told(passes=9.5))
    assert outlook.passes[0] == 10  # no half passes
    assert outlook.total_s[0] == pytest.approx(7 + 10 * (100 / 4**0.8 + 2 + 1))
    assert outlook.cost[0] == pytest.approx(4 * outlook.total_s[0] * 3.6 / 3600)


@given(deadline=st.floats(10, 5000), sd=st.floats(0, 0.5), confidence=st.sampled_from([0.5, 0.8, 0.9, 0.99]))
@settings(max_examples=60, deadline=None)
def test_what_is_chosen_holds_the_limits_and_nothing_cheaper_does(
    deadline: float, sd: float, confidence: float
) -> None:
    question = Question(target=0.5, deadline_s=deadline, confidence=confidence)
    plan = ask(question, sd=sd)
    holds = [row for row in plan.rows if row.chance >= confidence]
    assert (plan.chosen is None) == (not holds)
    if holds:
        assert plan.row.chance >= confidence
        assert plan.row.cost.value <= min(row.cost.value for row in holds) * (1 + 1e-9)


@given(sd=st.floats(0.01, 0.5), low=st.floats(50, 900), more=st.floats(1.0, 3.0))
@settings(max_examples=40, deadline=None)
def test_a_later_deadline_never_costs_more(sd: float, low: float, more: float) -> None:
    one = ask(Question(target=0.5, deadline_s=low), sd=sd)
    two = ask(Question(target=0.5, deadline_s=low * more), sd=sd)
    if one.chosen is not None:
        assert two.chosen is not None
        assert two.row.cost.value <= one.row.cost.value * (1 + 1e-9)


def test_no_row_beats_one_of_the_frontier() -> None:
    plan = ExactPlanner().plan(
        Question(target=0.8, deadline_s=400.0), options(), evidence(), np.random.default_rng(0)
    )
    assert plan.frontier
    for i in plan.frontier:
        assert not any(
            row.total_s.value < plan.rows[i].total_s.value and row.cost.value < plan.rows[i].cost.value
            for row in plan.rows
        )


def test_relaxations_really_help() -> None:
    question = Question(target=0.9, deadline_s=60.0)

    def again(changed: Question, others: list[Option]) -> Plan:
        return ExactPlanner().plan(changed, others, evidence(), np.random.default_rng(0))

    plan = relaxed(again(question, options()), again, 0.5)  # type: ignore[arg-type]
    assert plan.chosen is None
    assert plan.binding == ("deadline",)
    found = {each.limit: each.value for each in plan.relaxations}
    assert again(replace(question, deadline_s=found["deadline"] * 1.001), options()).chosen is not None
    assert again(replace(question, target=found["target"]), options()).chosen is not None
    assert found["target"] < 0.9


def test_a_budget_binds_by_itself() -> None:
    plan = ask(Question(target=0.5, budget=0.001, prices={"t4": 1.0}))
    assert plan.chosen is None
    assert plan.binding == ("budget",)


def test_best_metric_uses_the_time_there_is() -> None:
    plan = ask(Question(objective="metric", deadline_s=200.0), sd=0.0)
    assert plan.row.option.replicas == 8
    assert plan.row.passes == 10


def test_replan_is_quiet_in_time_and_names_what_would_save_a_late_run() -> None:
    plan = ask(Question(target=0.5, deadline_s=600.0))
    option = plan.row.option
    planned = plan.row.total_s.value / plan.row.passes
    fine = replan(
        plan,
        Progress(option=option, passes=2, elapsed_s=2 * planned, pass_s=Interval(planned, planned, planned)),
    )
    assert fine.on_time
    assert not fine.rescues
    slow = 2.5 * planned
    late = replan(
        plan,
        Progress(option=option, passes=2, elapsed_s=2 * slow, pass_s=Interval(slow, slow, slow)),
        change_s=1.0,
    )
    assert not late.on_time
    assert late.rescues
    assert late.rescues[0].option.gpus > option.gpus
    assert "late" in late.text
    over = replan(plan, Progress(option=option, passes=0, elapsed_s=599.0, pass_s=Interval(slow, slow, slow)))
    assert over.rescues == ()
    assert "no other option finishes in time" in over.text
    with pytest.raises(InputError, match="does not know the option"):
        replan(
            plan, Progress(option=replace(option, batch=7), passes=0, elapsed_s=0, pass_s=Interval(1, 1, 1))
        )


def test_options_are_packed_and_accumulate_beyond_what_a_gpu_holds() -> None:
    offer = Offer(gpu_type="t4", replicas=(1, 6), gpus_per_node=4, per_gpu_max=64)
    found = options_of([offer], [4, 256])
    assert [(o.replicas, o.nodes, o.batch, o.accumulation) for o in found] == [
        (1, 1, 4, 0),
        (1, 1, 256, 3),
        (6, 2, 240, 0),
    ]


@given(
    batches=st.lists(st.integers(1, 5000), min_size=1, max_size=6, unique=True).map(sorted),
    replicas=st.integers(1, 40),
    most=st.none() | st.integers(1, 500),
)
def test_all_replicas_of_an_option_have_as_many_examples_unless_none_can(
    batches: list[int], replicas: int, most: int | None
) -> None:
    offer = Offer(gpu_type="t4", replicas=(replicas,), gpus_per_node=4, per_gpu_max=most)
    found = options_of([offer], batches)
    assert bool(found) == (batches[-1] >= replicas)
    assert all(batches[0] <= option.batch <= batches[-1] for option in found)
    uneven = [o for o in found if o.batch % (o.replicas * (o.accumulation + 1))]
    assert not uneven or uneven == found
    if most is not None and not uneven:
        assert all(o.batch / o.replicas / (o.accumulation + 1) <= most for o in found)


def test_a_batch_size_that_ran_is_an_option_as_it_is() -> None:
    offer = Offer(gpu_type="t4", replicas=(16,), gpus_per_node=8, ran={16: {3308}})
    assert [o.batch for o in options_of([offer], [3200, 3300, 3308])] == [3200, 3308]


@given(low=st.integers(1, 1000), times=st.integers(1, 1000))
@settings(max_examples=50, deadline=None)
def test_batch_sizes_span_the_range(low: int, times: int) -> None:
    sizes = batch_sizes(low, low * times)
    assert (sizes[0], sizes[-1]) == (low, low * times)
    assert len(sizes) <= 50
    assert sizes == sorted(set(sizes))


def test_profiling_ends_and_never_runs_an_option_twice() -> None:
    question = Question(target=0.5, deadline_s=400.0)
    done: list[int] = []
    while (i := next_run(question, options(), Told() if done else None, done)) is not None:
        assert i not in done
        done.append(i)
    assert first_runs(options()) == done[:3]
    assert 3 <= len(done) <= len(options())


@pytest.mark.parametrize("sd", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("confidence", [0.6, 0.8, 0.9])
def test_best_metric_is_the_best_of_all_whose_chance_is_just_the_confidence(
    sd: float, confidence: float
) -> None:
    # passes are such that every option has just the confidence asked for; rounding took most of them out
    question = Question(objective="metric", deadline_s=150.0, confidence=confidence, whole_passes=False)
    plan = ask(question, sd=sd)
    assert plan.chosen is not None
    best = max(row.metric.value for row in plan.rows if row.metric is not None)
    assert plan.row.metric is not None
    assert plan.row.metric.value == pytest.approx(best)
    assert all(row.chance >= confidence for row in plan.rows)


def test_best_metric_counts_that_passes_may_be_fewer() -> None:
    # metric = passes / 20 up to 1: where just 20 passes are expected, some of the time it is less
    sure = ask(Question(objective="metric", deadline_s=2000.0, whole_passes=False), sd=0.0)
    unsure = ask(Question(objective="metric", deadline_s=2000.0, whole_passes=False), sd=0.5)
    one = next(i for i, row in enumerate(sure.rows) if row.option.replicas == 1)
    before, after = sure.rows[one].metric, unsure.rows[one].metric
    assert before is not None
    assert after is not None
    assert after.value < before.value


def test_nearest_option_is_the_cheapest_of_those_with_about_the_same_chance() -> None:
    # 1000 s / replicas^0.8 against 92 s: all of 16 and more replicas are too slow or as sure as can be
    plan = ask(Question(target=0.9, deadline_s=92.0, confidence=0.9), sd=0.3)
    if plan.chosen is None:
        most = max(row.chance for row in plan.rows)
        near = [row.cost.value for row in plan.rows if row.chance >= 0.9 * most]
        assert plan.row.cost.value == min(near)
    else:
        pytest.fail("the question was to have no sure answer")


def test_nothing_far_beyond_what_ran_is_offered_unless_there_is_nothing_else() -> None:
    offer = Offer(gpu_type="a100", replicas=(8, 16), gpus_per_node=8, far_beyond=816.0, ran={8: {67456}})
    assert [(o.replicas, o.batch) for o in options_of([offer], [6528, 67456])] == [
        (8, 6528),
        (8, 67456),
        (16, 6528),
    ]
    assert [
        o.batch
        for o in options_of([Offer(gpu_type="a100", replicas=(1,), gpus_per_node=8, far_beyond=8.0)], [64])
    ] == [64]
