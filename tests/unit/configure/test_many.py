"""Many jobs at once get the answers each would get alone."""

from __future__ import annotations

import numpy as np
import pytest

from coadapt.configure import SpeedModel
from coadapt.configure.best_batch import best_goodput
from coadapt.configure.goodput_table import Question, speeds
from coadapt.model import Batch
from coadapt.prediction.gradient_noise import efficiencies_over, efficiency_over
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time.pollux import StepTimeParams
from tests.unit.prediction.pollux_tables import a_table, exact_rows

LIMITS = Batch(initial=128, max=4096, per_gpu_min=32, per_gpu_max=1024)
NODES, REPLICAS = (1, 1, 1, 2, 4, 16), (1, 2, 4, 8, 16, 64)


def a_model(grad: tuple[float, float], grad_batch: int, shapes: list[tuple[int, int, int]]) -> SpeedModel:
    known = StepTimeParams(
        alpha_c=0.05, beta_c=0.004, alpha_n=0.1, beta_n=0.01, alpha_r=0.03, beta_r=0.003, gamma=1.6
    )
    params = step_time.fit(a_table(exact_rows(known, shapes)))
    assert params is not None
    return SpeedModel(step_time=params, grad=grad, initial_batch=128, grad_batch=grad_batch)


MODELS = [
    a_model((1.0, 20.0), 512, [(1, 1, 64), (1, 2, 128), (1, 4, 64), (2, 8, 256)]),
    a_model((1.0, 5.0), 128, [(1, 1, 1024)]),
    a_model((1.0, 200.0), 4096, [(1, 1, 32), (1, 1, 512), (4, 16, 100)]),
    a_model((0.0, 3.0), 256, [(1, 1, 32), (1, 4, 32)]),  # nothing but noise
    a_model((2.0, 0.0), 256, [(1, 1, 32)]),  # no noise at all
    a_model((1.0, 30.0), 0, [(1, 1, 64), (1, 2, 128)]),  # taken as it is
]


@pytest.mark.parametrize("fixed", [None, 512])
def test_many_jobs_at_once_are_within_half_a_percent_of_each_alone(fixed: int | None) -> None:
    found = speeds([Question(model, LIMITS, fixed) for model in MODELS], NODES, REPLICAS)
    together = np.array([one.goodput for one in found])
    alone = np.array([best_goodput(model, LIMITS, NODES, REPLICAS, fixed=fixed) for model in MODELS])
    np.testing.assert_allclose(together, alone, rtol=5e-3)
    assert (together[:, 0] > 0).all()


def test_an_answer_does_not_depend_on_who_else_is_asked() -> None:
    other = Batch(initial=128, max=900, per_gpu_min=8, per_gpu_max=64)
    all_limits = [(LIMITS, None), (other, None), (LIMITS, 512)]
    questions = [Question(model, *limits) for model in MODELS for limits in all_limits]
    together = speeds(questions * 10, NODES, REPLICAS)
    for row, asked in enumerate(questions):  # to the last bit: decisions are replayed
        (lone,) = speeds([asked], NODES, REPLICAS)
        for one in (together[row], together[-len(questions) + row]):
            np.testing.assert_array_equal(lone.goodput, one.goodput)
            np.testing.assert_array_equal(lone.examples_per_s, one.examples_per_s)


def test_the_last_batch_size_before_one_pass_more_is_looked_at() -> None:
    # speed drops by a pass there: the best is right before it, between any two that are evenly spread
    limits = Batch(initial=100, max=10_000, per_gpu_min=50, per_gpu_max=300)
    model = a_model((1.0, 1e6), 128, [(1, 1, 50), (1, 1, 300), (1, 2, 200), (2, 8, 100)])
    places = (1, 1, 1, 2), (1, 2, 4, 8)
    (found,) = speeds([Question(model, limits)], *places)
    np.testing.assert_allclose(found.goodput, best_goodput(model, limits, *places), rtol=5e-3)


def test_efficiencies_are_those_of_each_job() -> None:
    batch = np.geomspace(128, 4096, 30)
    grads = [(*model.grad, model.grad_batch or 128) for model in MODELS]
    carry = np.array([model.grad_batch > 0 for model in MODELS])
    batches, count = np.tile(batch, (len(grads), 1)), len(grads)
    together = efficiencies_over(
        grads, np.full(count, 128.0), batches, np.log(batches), np.full(count, 4096.0), carry=carry
    )
    for row, model in zip(together, MODELS, strict=True):
        np.testing.assert_allclose(row, model.efficiency(batch), rtol=2e-3)
    assert ((together > 0) & (together <= 1 + 1e-9)).all()
    one = efficiency_over(1.0, 20.0, 128, 512, np.array([512.0]))
    assert one[0] == pytest.approx((2560 + 128) / (2560 + 512))
