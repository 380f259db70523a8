from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.prediction.remaining import eta_estimate
from coadapt.prediction.remaining.eta_estimate import eta, eta_of, seconds_per_work
from coadapt.prediction.remaining.work import LEVELS, RemainingWork


def watched(times, works=None, configs=None):
    """The state after steps that took ``times``, each of one unit of work unless ``works`` says otherwise."""
    state, at, done = eta_estimate.START, 0.0, 0.0
    state = eta_estimate.observe(state, at, done, configs[0] if configs else "")
    for number, took in enumerate(times):
        at, done = at + took, done + (works[number] if works is not None else 1.0)
        state = eta_estimate.observe(state, at, done, configs[number] if configs else "")
    return state


def noisy(count, level=1.0, seed=0, sigma=0.1):
    return level * np.exp(np.random.default_rng(seed).normal(0, sigma, count))


def test_eta_of_a_steady_run_is_work_left_times_pace():
    found = eta(watched([2.0] * 100), 50.0)
    assert found is not None
    assert found.value == pytest.approx(100.0)
    assert 90 < found.low < 100 < found.upper < 110


def test_eta_counts_stragglers_at_their_mean():
    times = np.where(np.arange(1000) % 10 == 0, 4.0, 1.0)
    found = eta(watched(times.tolist()), 1000.0)
    assert found is not None
    assert found.value == pytest.approx(1300, rel=0.02)


def test_eta_takes_one_long_stop_for_a_chance():
    times = noisy(400)
    stopped = times.copy()
    stopped[200] += 100.0
    plain, found = eta(watched(times.tolist()), 400.0), eta(watched(stopped.tolist()), 400.0)
    assert plain is not None
    assert found is not None
    assert plain.value < found.value < plain.value + 60
    assert found.upper > plain.value + 100


def test_eta_goes_on_with_pauses_that_come_like_clockwork():
    times = np.ones(500)
    times[49::50] += 20.0  # validation at the end of every epoch
    found = eta(watched(times.tolist()), 500.0)
    assert found is not None
    assert found.value == pytest.approx(700, rel=0.01)


def test_eta_follows_a_resize_that_is_told_at_once():
    times, configs = [1.0] * 200 + [0.5] * 6, ["a"] * 200 + ["b"] * 6
    found = eta(watched(times, configs=configs), 100.0)
    assert found is not None
    assert found.value == pytest.approx(50.0, rel=0.02)
    assert found.low < 50 < found.upper


def test_eta_notices_a_change_of_pace_that_nobody_tells():
    times = [*noisy(400, 1.0, sigma=0.05), *noisy(150, 2.0, seed=1, sigma=0.05)]
    state = watched([float(t) for t in times])
    assert state.changes == 1
    found = eta(state, 100.0)
    assert found is not None
    assert found.value == pytest.approx(200, rel=0.05)


def test_eta_notices_steps_that_become_far_slower():
    state = watched([1.0] * 100 + [20.0] * 30)
    found = eta(state, 10.0)
    assert found is not None
    assert found.value == pytest.approx(200, rel=0.1)


def test_eta_is_in_work_whatever_the_batch_size():
    works = [32.0] * 200 + [64.0] * 100
    times = [1.0] * 200 + [1.5] * 100
    found = eta(watched(times, works), 640.0)
    assert found is not None
    assert found.value == pytest.approx(15.0, rel=0.05)


def test_eta_follows_a_trend_and_lets_it_fade():
    works = np.arange(1, 301, dtype=float)
    times = works**-0.4  # each unit of work takes less time than the last
    found = eta(watched(times.tolist()), 300.0)
    true = float((np.arange(301, 601) ** -0.4).sum())
    assert found is not None
    assert found.value == pytest.approx(true, rel=0.1)
    assert found.low < true < found.upper


def test_eta_is_not_known_before_there_is_anything_to_go_by():
    assert eta(eta_estimate.START, 10.0) is None
    assert eta(watched([1.0]), 10.0) is None
    assert seconds_per_work(eta_estimate.START) is None
    early, late = eta(watched([1.0] * 3), 10.0), eta(watched([1.0] * 300), 10.0)
    assert early is not None
    assert late is not None
    assert early.upper - early.low > 3 * (late.upper - late.low)


def test_eta_of_no_work_is_zero_and_of_nonsense_an_error():
    assert eta(watched([1.0] * 9), 0.0).value == 0.0  # type: ignore[union-attr]
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError):
            eta(watched([1.0] * 9), wrong)


def test_observe_refuses_what_is_no_number():
    for at, work in ((math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(InputError):
            eta_estimate.observe(eta_estimate.START, at, work)


def test_observe_survives_progress_and_time_that_go_back():
    state = watched([1.0] * 50)
    state = eta_estimate.observe(state, 51.0, 20.0)  # restarted from a checkpoint
    state = eta_estimate.observe(state, 40.0, 21.0)  # and the clock was set
    assert state.setbacks == 2
    for step in range(1, 20):
        state = eta_estimate.observe(state, 51.0 + step, 21.0 + step)
    found = eta(state, 10.0)
    assert found is not None
    assert found.value == pytest.approx(10.0, rel=0.05)


def test_observe_joins_steps_that_fall_into_one_second():
    state = eta_estimate.START
    for step in range(101):
        state = eta_estimate.observe(state, float(step // 4), float(step))
    found = eta(state, 40.0)
    assert found is not None
    assert found.value == pytest.approx(10.0, rel=0.1)


def test_resume_leaves_out_the_time_of_a_preempted_job():
    state = watched([1.0] * 50)
    state = eta_estimate.resume(state, 5000.0)
    state = eta_estimate.observe(state, 5001.0, 51.0)
    found = eta(state, 10.0)
    assert found is not None
    assert found.value == pytest.approx(10.0, rel=0.02)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), max_size=60), st.floats(0, 1e6))
@settings(deadline=None, max_examples=60)
def test_eta_is_always_ordered_and_finite_and_its_state_bounded(steps, left):
    state = eta_estimate.START
    for at, work in steps:
        state = eta_estimate.observe(state, at, work)
    found = eta(state, left)
    assert len(state.blocks) <= eta_estimate.MAX_BLOCKS
    if found is not None:
        assert 0 <= found.low <= found.value <= found.upper
        assert math.isfinite(found.upper)


def test_state_stays_small_however_long_the_run():
    state = watched(noisy(5000).tolist())
    assert len(state.blocks) <= eta_estimate.MAX_BLOCKS
    assert len(state.usual) <= 15


def test_eta_of_uncertain_work_is_wider_and_may_be_never():
    state = watched(noisy(200).tolist())
    sure = eta(state, 100.0)
    vague = RemainingWork(quantiles=tuple(200 * level for level in LEVELS))
    found = eta_of(state, vague)
    assert sure is not None
    assert found is not None
    assert found.value == pytest.approx(sure.value, rel=0.01)
    assert found.upper > 1.5 * sure.upper
    never = eta_of(state, RemainingWork(quantiles=(1.0,) * len(LEVELS), never=0.9))
    assert never is not None
    assert math.isinf(never.value)
