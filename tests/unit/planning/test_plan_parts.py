"""Small parts of a plan: memory, accumulation, learning-rate rules, the metric's scatter."""

from __future__ import annotations

import numpy as np
import pytest

from coadapt.errors import UnknownNameError
from coadapt.planning.answer import efficiencies, rate_factor
from coadapt.planning.forecasts import AccumulatedForecast, ScatteredForecast, scatter_of
from coadapt.planning.option_outlook import Columns, Passes, columns_of
from coadapt.planning.plan_api import Offer, options_of
from coadapt.planning.problem import MemorySample, Option, Question, largest_batch
from coadapt.prediction._base import FloatArray

GB = 1e9


class Told:
    """1,000 examples; a backward pass of m takes 1 + m, a step on several replicas 5 more; passes = 10 x target, times batch / 100 for work."""

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        local = columns.batch / columns.replicas
        step = 1 + local + 5 * (columns.replicas > 1)
        return 1000 / columns.batch * step, np.full(len(columns.batch), 0.1)

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        return Passes(np.full(len(batch), 10 * target), np.full(len(batch), 0.03), np.ones(len(batch)))

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        return epochs * (1 + batch / 100)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray]:
        return passes / 10, np.full(len(batch), 0.04)


def test_memory_is_a_line_from_two_runs_and_all_of_it_grows_from_one() -> None:
    two = [MemorySample(16, 3 * GB), MemorySample(64, 6 * GB)]  # 2 GB and 1/16 GB per example
    assert largest_batch(two, 10 * GB) == int((9.4 - 2) * 16)
    assert largest_batch(two[:1], 10 * GB) == int(9.4 / 3 * 16)
    assert largest_batch(two, 1 * GB) == 0
    assert largest_batch([], 10 * GB) is None
    assert largest_batch([MemorySample(16, 3 * GB), MemorySample(64, 3 * GB)], 10 * GB) is None


def test_a_gpu_that_holds_no_example_offers_nothing() -> None:
    assert options_of([Offer(gpu_type="t4", replicas=(1,), gpus_per_node=8, per_gpu_max=0)], [32]) == []


def test_accumulated_steps_synchronise_once() -> None:
    option = Option(gpu_type="t4", replicas=2, nodes=1, batch=80, accumulation=3)
    question = Question(epochs=1.0)
    columns = columns_of(question, [option])
    # a step: three passes of 10 examples alone, (1 + 10) each, and one with synchronisation, 1 + 10 + 5
    by_hand = 1000 / 80 * (3 * 11 + 16)
    assert AccumulatedForecast(Told()).pass_s(columns)[0][0] == pytest.approx(by_hand)
    measured = AccumulatedForecast(Told(), {("t4", 80, 2)}).pass_s(columns)[0][0]
    assert measured == pytest.approx(1000 / 80 * (1 + 40 + 5))
    plain = columns_of(question, [Option(gpu_type="t4", replicas=2, nodes=1, batch=80)])
    assert AccumulatedForecast(Told()).pass_s(plain)[0][0] == pytest.approx(1000 / 80 * (1 + 40 + 5))


def test_learning_rates_grow_by_rule() -> None:
    assert rate_factor("linear", 4.0) == 4.0
    assert rate_factor("sqrt", 4.0) == 2.0
    assert rate_factor("none", 4.0) == 1.0
    assert rate_factor("adascale", 4.0, 0.6) == pytest.approx(2.4)
    # however little a large batch brings, it is no reason for a smaller rate
    assert rate_factor("adascale", 4.0, 0.1) == 1.0
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        rate_factor("liner", 2.0)


def test_efficiency_is_of_the_smallest_batch() -> None:
    assert efficiencies(Told(), {100, 300}, 10.0) == {100: 1.0, 300: pytest.approx(0.5)}


def test_scatter_widens_metric_and_passes() -> None:
    batch = np.array([32.0])
    wide = ScatteredForecast(Told(), 0.03, higher_is_better=True)
    metric = wide.metric_after(batch, np.array([5.0]))
    assert metric is not None
    assert metric[1][0] == pytest.approx(0.05)
    passes = wide.passes_to(0.5, batch)
    assert passes.needed[0] == 5
    assert passes.log_sd[0] == pytest.approx(np.hypot(0.03, np.log(0.53 / 0.5)))
    assert ScatteredForecast(Told(), 0.0, higher_is_better=True).passes_to(0.5, batch).log_sd[0] == 0.03


def test_scatter_is_that_of_the_noise_not_of_the_rise() -> None:
    rng = np.random.default_rng(0)
    smooth = [(float(p), 1 - 0.5 ** (p / 3)) for p in range(1, 41)]
    assert scatter_of([(32, smooth)]) < 0.005
    noisy = [(32 + k, [(p, v + 0.02 * rng.normal()) for p, v in smooth]) for k in range(50)]
    assert scatter_of(noisy) == pytest.approx(0.02, rel=0.1)
    # two runs that are smooth each, but differ
    shifted = [(p, v + 0.03) for p, v in smooth]
    assert scatter_of([(32, smooth), (32, shifted)]) > 0.01
    assert scatter_of([(32, smooth), (64, shifted)]) < 0.005
    assert scatter_of([]) == 0.0
    falling = [(batch, [(p, 2 - v) for p, v in curve]) for batch, curve in noisy]
    assert scatter_of(falling) == pytest.approx(scatter_of(noisy))
