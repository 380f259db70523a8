"""What options are worth, objective by objective."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.policies.coadapt.offers import LEVELS
from coadapt.policies.coadapt.worth import (
    OBJECTIVES,
    Floats,
    Objective,
    discounted,
    fair_speedup,
    hesrpt_weights,
    worth,
)
from tests.unit.policies.made_up import some_offers

MIDDLE = LEVELS.index(0.5)
exponents = st.floats(0.1, 0.9)


def known(*left_s: float) -> Floats:
    """Remaining times without doubt."""
    return np.repeat(np.array(left_s)[:, None], len(LEVELS), axis=1)


@given(st.sets(st.integers(1, 10**6), min_size=1, max_size=30), exponents)
def test_hesrpt_shares_are_those_of_the_paper_and_add_up_to_one(left: set[int], p: float) -> None:
    """The i-th of n jobs, largest first: (i/n)^(1/(1-p)) - ((i-1)/n)^(1/(1-p)); weights are its powers 1 - p."""
    left_s = sorted(map(float, left), reverse=True)
    weights = hesrpt_weights(known(*left_s), p)
    shares = weights ** (1 / (1 - p))
    assert shares.sum() == pytest.approx(1.0)
    i, n, power = np.arange(1, len(left) + 1), len(left), 1 / (1 - p)
    assert shares == pytest.approx((i / n) ** power - ((i - 1) / n) ** power)
    assert (np.diff(weights) > 0).all()  # the smaller, the more


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=10), st.randoms())
def test_hesrpt_weights_follow_the_job_not_its_row(left: list[float], random: object) -> None:
    order = np.random.default_rng(len(left)).permutation(len(left))
    levels = known(*left)
    assert hesrpt_weights(levels[order], 0.7) == pytest.approx(hesrpt_weights(levels, 0.7)[order])


def test_hesrpt_equal_jobs_weigh_the_same() -> None:
    weights = hesrpt_weights(known(5.0, 5.0, 5.0, 100.0), 0.7)
    assert weights[0] == weights[1] == weights[2] > weights[3]


@given(st.floats(0.5, 3.0))
def test_hesrpt_doubt_draws_a_job_to_the_middle(spread: float) -> None:
    """The hedge: a wide guess at the smallest weighs less than a sure one, a wide guess at the largest more."""
    sure = known(*(10.0 * 2**i for i in range(9)))
    wide = np.exp(spread * np.array([-1.28, -0.52, 0.0, 0.52, 1.28]))
    for row, sign in ((0, -1), (8, 1)):
        doubted = sure.copy()
        doubted[row] *= wide
        change = hesrpt_weights(doubted, 0.7)[row] - hesrpt_weights(sure, 0.7)[row]
        assert sign * change >= 0
        assert spread < 1 or sign * change > 0


def test_hesrpt_a_job_that_may_never_end_comes_last() -> None:
    weights = hesrpt_weights(known(1.0, np.inf, 50.0), 0.7)
    assert weights[1] < weights[2] < weights[0]
    assert np.isfinite(weights).all()


# -- what a change costs -----------------------------------------------------------------------------------------


def test_a_change_costs_its_time_out_of_the_stretch_it_is_made_for() -> None:
    """On 2 GPUs now, with 600 s to go at speed 1; a change takes 30 s."""
    offers = some_offers([[0, 1, 1.5, 2]], work=[600.0], current=[2])
    speed = discounted(offers, np.array([30.0]), 300.0, 0.0)[0]
    assert speed == pytest.approx([0, 300 / 330, 1.5, 2 * 300 / 330])  # its end is beyond the horizon
    ending = some_offers([[0, 1, 1.5, 2]], work=[60.0], current=[2])
    speed = discounted(ending, np.array([30.0]), 300.0, 0.0)[0]
    assert speed == pytest.approx([0, 60 / 90, 1.5, 2 * 30 / 60])  # on 4 it would end after 30 s


def test_a_waiting_job_pays_nothing_for_its_start_and_hysteresis_counts_for_changes_only() -> None:
    offers = some_offers([[0, 1, 1.5, 2], [0, 1, 1.5, 2]], work=[600.0, 600.0], current=[0, 1])
    speed = discounted(offers, np.array([30.0, 30.0]), 300.0, 0.1)
    assert speed[0] == pytest.approx([0, 1, 1.5, 2])
    assert speed[1] == pytest.approx([0, 1, 0.9 * 1.5 * 300 / 330, 0.9 * 2 * 300 / 330])


def test_a_job_on_something_that_is_no_option_changes_with_every_option() -> None:
    offers = some_offers([[0, 1, 1.5, 2]], work=[600.0], current=[-1])
    assert (discounted(offers, np.array([30.0]), 300.0, 0.0)[0][1:] < [1, 1.5, 2]).all()


# -- objectives -----------------------------------------------------------------------------------------------------


def value_of(
    objective: Objective, rows: list[list[float]], p: float = 0.7, on_time: float = 0.0, **fields: object
) -> Floats:
    weights = np.array(fields.pop("weights", [1.0] * len(rows)))
    age_s = np.array(fields.pop("age_s", [0.0] * len(rows)))
    offers = some_offers(rows, **fields)  # type: ignore[arg-type]
    cost_s = np.zeros(len(rows))
    speedup = discounted(offers, cost_s, 300.0, 0.0)
    after_s = offers.after_s(cost_s)
    return worth(objective, offers, speedup, after_s, age_s, cost_s, p=p, weights=weights, on_time=on_time)


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(st.lists(st.sampled_from([0.3, 0.5, 0.9]), min_size=1, max_size=5), st.floats(0.1, 10.0))
def test_nothing_is_worth_nothing_and_anything_at_least_as_much(
    objective: Objective, powers: list[float], rate: float
) -> None:
    rows = [[0.0, *(rate * size**power for size in (1, 2, 4))] for power in powers]
    rows[0][3] = 0.0  # it cannot have four
    value = value_of(objective, rows, -1.0 if objective == "mean" else 0.7, work=[100.0 * rate] * len(rows))
    assert (value[:, 0] == 0).all()
    assert value[0, 3] == -np.inf
    assert (value[:, 1] > 0).all()
    assert np.isfinite(np.delete(value.ravel(), 3)).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_weights_count(objective: Objective) -> None:
    rows = [[0, 1, 1.5, 2]]
    p = -1.0 if objective == "mean" else 0.7
    assert value_of(objective, rows, p, weights=[2.0]) == pytest.approx(2 * value_of(objective, rows, p))


@given(st.floats(-10, 1))
def test_mean_is_worth_more_the_faster_and_tells_options_apart_for_every_exponent(p: float) -> None:
    value = value_of("mean", [[0, 1, 1.5, 2], [0, 0.01, 0.02, 0.03]], p)
    assert (np.diff(value, axis=1) > 0).all()
    assert np.isfinite(value).all()


def test_mean_with_a_low_exponent_cares_for_the_slow_first() -> None:
    """One at its fair share, one at half of it, a GPU for either: at p = 1 the steeper gain decides, at -5 need does."""
    rows = [[0, 1, 2, 3.2], [0, 1, 1.8, 2.6]]
    gains = {p: np.diff(value_of("mean", rows, p, capacity=(4,)), axis=1) for p in (1.0, -5.0)}
    assert gains[1.0][0, 2] > gains[1.0][1, 2]
    assert gains[-5.0][1, 0] > gains[-5.0][0, 2]


def test_throughput_knows_no_lengths_and_jct_does() -> None:
    rows = [[0, 1, 1.5, 2]] * 2
    assert (value_of("throughput", rows, work=[10.0, 1000.0])[0] == value_of("throughput", rows)[1]).all()
    jct = value_of("jct", rows, work=[10.0, 1000.0])
    assert (jct[0, 1:] > jct[1, 1:]).all()


def test_cost_stops_growing_where_a_gpu_adds_less_than_half_of_the_first() -> None:
    """Speed-ups 1, 1.8, 2.6: the second GPU adds 0.8, the next two 0.4 each."""
    value = value_of("cost", [[0, 1, 1.8, 2.6]])
    assert value[0].argmax() == 2
    assert value_of("jct", [[0, 1, 1.8, 2.6]])[0].argmax() == 3


def test_cost_prices_nothing_that_a_job_cannot_do_without() -> None:
    """A job of 64 GPUs or nothing is worth running, however little each of them adds."""
    value = value_of("cost", [[0, 0, 0, 1.0]], size=(0, 1, 2, 64), capacity=(64,))
    assert value[0, 3] > 0


def test_fairness_gives_more_to_a_job_that_can_still_end_in_time() -> None:
    """Both alike, one far too old for its fair time already: what it gets changes nothing any more."""
    rows = [[0, 1, 1.5, 2]] * 2
    value = value_of("fairness", rows, age_s=[0.0, 1e6], done=[0.0, 0.0], capacity=(4,))
    assert (value[0, 1:] > value[1, 1:]).all()
    assert value_of("jct", rows)[0] == pytest.approx(value_of("jct", rows)[1])


def test_prize_of_an_end_in_time_counts_for_jct_and_is_part_of_fairness() -> None:
    rows = [[0, 1, 1.5, 2]] * 2
    ages = {"age_s": [0.0, 1e6], "done": [0.0, 0.0], "capacity": (4,)}
    plain, prized = value_of("jct", rows, **ages), value_of("jct", rows, on_time=0.5, **ages)
    # the old job cannot end in time any more, so nothing is added for it
    assert prized[1] == pytest.approx(plain[1], abs=1e-3)
    assert (prized[0, 1:] > plain[0, 1:] + 0.1).all()
    assert value_of("jct", rows, on_time=1.0, **ages) == pytest.approx(value_of("fairness", rows, **ages))
    assert value_of("cost", rows, on_time=0.5, **ages) == pytest.approx(value_of("cost", rows, **ages))


def test_fair_share_is_what_all_get_alike() -> None:
    offers = some_offers([[0, 1, 1.5, 2], [0, 0, 0, 3]], capacity=(4,))
    assert fair_speedup(offers).tolist() == [1.5, 1.0]  # 2 GPUs each; the second can do nothing with 2
    alone = some_offers([[0, 1, 1.5, 2]], capacity=(4,))
    assert fair_speedup(alone).tolist() == [2.0]
    crowd = some_offers([[0, 1, 1.5, 2]] * 9, capacity=(4,))
    assert fair_speedup(crowd).tolist() == [1.0] * 9
