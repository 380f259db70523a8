from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.prediction.remaining.work import (
    LEVELS,
    RemainingEvidence,
    RemainingWork,
    declared_work,
    remaining,
)
from coadapt.spec.target import parse_target

FALLING = tuple((float(k), 0.2 + 0.8 * math.exp(-k / 10)) for k in range(1, 21))


def test_remaining_of_a_declared_job_is_what_is_left_of_it():
    answer = remaining(RemainingEvidence(done=30.0, declared=100.0))
    assert answer.estimate.value == pytest.approx(70.0)
    assert answer.estimate.upper - answer.estimate.low < 1.0
    assert answer.mean == pytest.approx(70.0, rel=0.01)


def test_remaining_trusts_the_program_more_the_further_it_is():
    early = remaining(RemainingEvidence(done=1.0, declared=100.0, share=0.005)).estimate
    late = remaining(RemainingEvidence(done=120.0, declared=200.0, share=0.8)).estimate
    assert early.value > 90  # 1/200 done says 200: hardly believed yet
    assert late.value == pytest.approx(120 / 0.8 - 120, rel=0.25)
    assert early.low <= early.value <= early.upper


def test_remaining_of_a_job_past_its_declared_end_falls_back():
    answer = remaining(RemainingEvidence(done=150.0, declared=100.0))
    assert answer.weights == {"attained": 1.0}
    assert answer.estimate.value > 0


def test_remaining_learns_from_jobs_that_stop_before_what_they_declare():
    plain = remaining(RemainingEvidence(done=10.0, declared=100.0))
    stopped = remaining(RemainingEvidence(done=10.0, declared=100.0, past_ratios=(0.5,) * 8))
    assert stopped.estimate.value < plain.estimate.value
    assert stopped.estimate.value == pytest.approx(40.0, abs=5)


def test_remaining_follows_the_curve_to_the_target():
    goal = 0.2 + 0.8 * math.exp(-3.0)
    answer = remaining(RemainingEvidence(done=20.0, target=f"loss<={goal}", curve=FALLING))
    assert answer.quantile(0.05) < 10 < answer.estimate.upper
    assert answer.estimate.value == pytest.approx(10, rel=0.15)
    assert answer.weights["course"] > 0.5


def test_remaining_says_that_a_plateau_does_not_reach_the_target():
    curve = tuple((float(k), 0.2 + 0.8 * math.exp(-k / 4)) for k in range(1, 41))
    answer = remaining(RemainingEvidence(done=40.0, target="loss<=0.1", curve=curve))
    assert answer.never > 0.7
    assert math.isinf(answer.estimate.value)
    assert "does not reach loss<=0.1" in answer.note


def test_remaining_believes_past_jobs_that_got_past_a_plateau():
    curve = tuple((float(k), 0.2 + 0.8 * math.exp(-k / 4)) for k in range(1, 41))
    answer = remaining(RemainingEvidence(done=40.0, target="loss<=0.1", curve=curve, past=(60.0, 62.0, 64.0)))
    assert answer.never < 0.3
    assert answer.estimate.value == pytest.approx(22, abs=3)


def test_remaining_is_nothing_once_the_target_is_reached():
    answer = remaining(RemainingEvidence(done=20.0, target="loss<=0.9", curve=FALLING))
    assert answer.estimate.upper == 0.0


def test_remaining_ends_at_the_declared_end_even_if_the_target_is_never_reached():
    curve = tuple((float(k), 0.2 + 0.8 * math.exp(-k / 4)) for k in range(1, 41))
    answer = remaining(RemainingEvidence(done=40.0, declared=50.0, target="loss<=0.1", curve=curve))
    assert answer.never == 0.0
    assert answer.estimate.value == pytest.approx(10.0)


def test_remaining_from_the_pool_is_conditional_on_what_was_attained():
    past = tuple(float(x) for x in (10, 20, 30, 100, 110, 120))
    young = remaining(RemainingEvidence(done=1.0, past=past))
    old = remaining(RemainingEvidence(done=50.0, past=past))
    assert young.estimate.value < old.estimate.value
    assert old.estimate.value == pytest.approx(60.0, abs=10)


def test_remaining_by_attained_service_alone_is_as_much_again():
    answer = remaining(RemainingEvidence(done=99.0, unit=1.0))
    assert answer.estimate.value == pytest.approx(100.0)
    assert answer.estimate.upper / answer.estimate.value > 5


def test_remaining_with_constant_or_missing_losses_is_no_silent_number():
    flat = tuple((float(k), 0.5) for k in range(1, 20))
    answer = remaining(RemainingEvidence(done=19.0, target="loss<=0.1", curve=flat))
    assert answer.never > 0.6
    nan = tuple((float(k), math.nan) for k in range(1, 20))
    answer = remaining(RemainingEvidence(done=19.0, target="loss<=0.1", curve=nan))
    assert answer.weights == {"attained": 1.0}


@pytest.mark.parametrize(
    "wrong", [{"done": -1.0}, {"done": math.nan}, {"share": 1.5}, {"past": (1.0,), "likeness": (1.0, 1.0)}]
)
def test_remaining_refuses_evidence_that_cannot_be(wrong):
    with pytest.raises(InputError):
        remaining(RemainingEvidence(**wrong))


@given(
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
    st.none() | st.floats(0, 1),
    st.lists(st.floats(1e-3, 1e9), max_size=6),
)
@settings(deadline=None, max_examples=60)
def test_remaining_is_ordered_positive_and_its_weights_sum_to_one(done, declared, share, past):
    answer = remaining(RemainingEvidence(done=done, declared=declared, share=share, past=tuple(past)))
    assert len(answer.quantiles) == len(LEVELS)
    assert all(math.isfinite(q) and q >= 0 for q in answer.quantiles)
    assert list(answer.quantiles) == sorted(answer.quantiles)
    assert sum(answer.weights.values()) == pytest.approx(1.0)
    assert answer.quantiles[0] * (1 - 1e-9) <= answer.mean <= answer.quantiles[-1] * (1 + 1e-9)


def test_sample_has_the_quantiles_and_the_share_of_never():
    work = RemainingWork(quantiles=tuple(100 * level for level in LEVELS), never=0.25)
    drawn = work.sample(np.random.default_rng(0), 20000)
    ended = drawn[np.isfinite(drawn)]
    assert 1 - len(ended) / len(drawn) == pytest.approx(0.25, abs=0.02)
    assert float(np.median(ended)) == pytest.approx(50, abs=2)
    assert work.quantile(0.9) == math.inf
    assert work.quantile(0.375) == pytest.approx(50)


def test_declared_work_is_in_useful_examples():
    assert declared_work(epochs=3, data_size=1000) == 3000
    assert declared_work(passes=3, data_size=1000, efficiency=0.5) == 1500
    assert declared_work(steps=10, batch=64, efficiency=0.5) == 320
    assert declared_work(epochs=3) is None
    assert declared_work() is None


def test_parse_target_reads_both_directions_and_names_what_is_wrong():
    assert parse_target("val_acc >= 0.93") == ("val_acc", True, 0.93)
    assert parse_target("wer<=25") == ("wer", False, 25.0)
    for wrong in ("val_acc", ">=3", "a>=x", "a>=nan"):
        with pytest.raises(InputError, match="target"):
            parse_target(wrong)
