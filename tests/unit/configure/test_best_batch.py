from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.configure.best_batch import SpeedModel, best_batch, best_batches, first_batch, split_batch
from coadapt.model import Batch
from coadapt.prediction.step_time.pollux import StepTimeParams

PARAMS = StepTimeParams(
    alpha_c=0.05, beta_c=0.004, alpha_n=0.2, beta_n=0.004, alpha_r=0.08, beta_r=0.002, gamma=1.5
)
LIMITS = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024)
TIGHT = Batch(initial=12, max=384, per_gpu_min=4, per_gpu_max=12)


def goodput_by_hand(params, grad, initial, nodes, replicas, atomic, accumulation):
    compute = params.alpha_c + params.beta_c * atomic
    beyond = max(replicas - 2, 1e-8)
    sync = 1e-8
    if nodes > 1:
        sync = params.alpha_n + params.beta_n * beyond
    elif replicas > 1:
        sync = params.alpha_r + params.beta_r * beyond
    step = (compute**params.gamma + sync**params.gamma) ** (1 / params.gamma) + accumulation * compute
    batch = replicas * atomic * (accumulation + 1)
    phi = initial * grad[1] / grad[0]
    return batch / step * (phi + initial) / (phi + batch)


def brute_force(params, grad, limits, nodes, replicas):
    """Candidate by candidate, as the docstring says."""
    low = max(limits.initial, limits.per_gpu_min * replicas)
    best = (0.0, 0, 0)
    for i in range(50):
        batch = low * (limits.max / low) ** (i / 49)
        local = batch / replicas
        s = math.ceil(local / limits.per_gpu_max - 1e-8) - 1
        if replicas == 1 and local > limits.initial + 1e-8:
            s = max(s, 1)
        m = math.ceil(local / (s + 1) - 1e-8)
        if limits.per_gpu_min <= m <= limits.per_gpu_max:
            best = max(best, (goodput_by_hand(params, grad, limits.initial, nodes, replicas, m, s), m, s))
    return best


grads = st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e5))


@given(grads, st.sampled_from([LIMITS, TIGHT]), st.integers(1, 8), st.integers(1, 64))
@settings(deadline=None)
def test_best_batch_agrees_with_brute_force(grad, limits, nodes, replicas):
    nodes = min(nodes, replicas)
    choice = best_batch(PARAMS, grad, limits, nodes, replicas)
    goodput, _, _ = brute_force(PARAMS, grad, limits, nodes, replicas)
    assert choice.goodput == pytest.approx(goodput, rel=1e-6)
    if choice.goodput > 0:
        assert choice.atomic_batch <= limits.per_gpu_max
        assert replicas * choice.atomic_batch * (choice.accumulation + 1) <= limits.max


def test_best_batches_are_those_of_single_questions():
    grad = (1.0, 20.0)
    model = SpeedModel(step_time=PARAMS, grad=grad, initial_batch=128)
    nodes, replicas = np.array([1, 1, 2, 4, 16]), np.array([1, 4, 2, 16, 64])
    many = best_batches(model, LIMITS, nodes, replicas)
    for i, (n, k) in enumerate(zip(nodes.tolist(), replicas.tolist(), strict=True)):
        one = best_batch(PARAMS, grad, LIMITS, n, k)
        assert (many.atomic_batch[i], many.accumulation[i]) == (one.atomic_batch, one.accumulation)
        assert many.goodput[i] == one.goodput


def test_best_batch_grows_with_the_noise():
    def total(var):
        choice = best_batch(PARAMS, (1.0, var), LIMITS, 2, 8)
        return 8 * choice.atomic_batch * (choice.accumulation + 1)

    assert total(0.01) == 256  # eight times the smallest a GPU takes: more would only waste examples
    assert total(0.01) < total(10.0) < total(10000.0) == 4096


def test_best_batch_of_a_lone_replica_accumulates_above_the_initial_batch():
    choice = best_batch(PARAMS, (1.0, 1e6), LIMITS, 1, 1)
    assert choice.atomic_batch * (choice.accumulation + 1) > 128
    assert choice.accumulation >= 1
    small = best_batch(PARAMS, (1.0, 1e-6), LIMITS, 1, 1)
    assert (small.atomic_batch, small.accumulation) == (128, 0)


def test_best_batch_of_too_many_replicas_is_worth_nothing():
    assert best_batch(PARAMS, (1.0, 1.0), LIMITS, 16, 128).goodput > 0  # 32 x 128 = 4096
    assert best_batch(PARAMS, (1.0, 1.0), LIMITS, 16, 129).goodput == 0.0


@pytest.mark.parametrize("mode", ["fixed", "adaptive"])
def test_best_batch_stays_at_a_total_that_leaves_no_choice(mode):
    limits = Batch(initial=32768, max=32768, per_gpu_min=32, per_gpu_max=32768, mode=mode)
    choice = best_batch(PARAMS, (1.0, 100.0), limits, 1, 1)
    assert (choice.atomic_batch, choice.accumulation) == (32768, 0)
    choice = best_batch(PARAMS, (1.0, 100.0), limits, 1, 4)
    assert (choice.atomic_batch, choice.accumulation) == (8192, 0)


def test_best_batch_in_fixed_mode_keeps_the_initial_total():
    fixed = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024, mode="fixed")
    choice = best_batch(PARAMS, (1.0, 1e6), fixed, 1, 4)
    assert (choice.atomic_batch, choice.accumulation) == (32, 0)
    assert choice.goodput == pytest.approx(goodput_by_hand(PARAMS, (1.0, 1e6), 128, 1, 4, 32, 0))
    assert best_batch(PARAMS, (1.0, 1e6), fixed, 2, 5).goodput == 0.0  # 26 per GPU are too few


@pytest.mark.parametrize(
    ("batch", "replicas", "limits", "expected"),
    [
        (128, 1, LIMITS, (128, 0)),  # M0 on one GPU: no accumulation
        (256, 1, LIMITS, (128, 1)),  # more than M0 on one GPU: two passes
        (256, 2, LIMITS, (128, 0)),
        (4096, 1, LIMITS, (1024, 3)),
        (1000, 3, LIMITS, (334, 0)),  # rounded up: 1002 in all
        (384, 8, TIGHT, (12, 3)),  # 48 per GPU in four passes of 12
        (384, 9, TIGHT, (10, 3)),  # 43 per GPU: 11 a pass would make 396 in all, more than the largest
        (50, 4, TIGHT, (7, 1)),  # 13 per GPU are one too many for one pass
    ],
)
def test_split_batch_by_hand(batch, replicas, limits, expected):
    assert split_batch(batch, replicas, limits) == expected


@pytest.mark.parametrize(
    ("replicas", "limits", "expected"),
    [
        (1, LIMITS, (128, 0)),
        (3, LIMITS, (43, 0)),
        (8, LIMITS, (32, 0)),  # 8 x 32 = 256 > M0
        (1, TIGHT, (12, 0)),
        (5, TIGHT, (4, 0)),
    ],
)
def test_first_batch_by_hand(replicas, limits, expected):
    assert first_batch(replicas, limits) == expected


@given(st.integers(12, 384), st.integers(1, 96))
def test_split_batch_reaches_the_total_but_for_rounding(batch, replicas):
    atomic, accumulation = split_batch(batch, replicas, TIGHT)
    assert 1 <= atomic <= TIGHT.per_gpu_max
    total = replicas * atomic * (accumulation + 1)
    assert total <= TIGHT.max
    assert abs(total - batch) < replicas * (accumulation + 2)
