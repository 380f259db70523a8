from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.prediction.samples.final_metric import MetricParams, MetricQuery, fit, predict
from coadapt.prediction.samples.kriging import gap_at, weights_at
from coadapt.prediction.samples.sample_table import MetricSample, MetricTable, metric_table, observe_metric

BATCHES = (32, 64, 128, 256, 512)


def true_metric(batch: int, epochs: float) -> float:
    """Accuracy that rises with epochs and is a little lower at large batches."""
    return 0.9 - 0.5 / (1 + epochs) - 0.02 * math.log2(batch / 32)


def a_table(
    batches: tuple[int, ...] = BATCHES,
    epochs: tuple[int, ...] = tuple(range(1, 21)),
    noise: float = 0.0,
    higher_is_better: bool = True,
    seed: int = 0,
) -> MetricTable:
    rng = np.random.default_rng(seed)
    samples = []
    for batch in batches:
        for e in epochs:
            value = true_metric(batch, e) + noise * rng.normal()
            samples.append(
                MetricSample(batch=batch, epochs=e, metric=value if higher_is_better else 1 - value)
            )
    return metric_table(samples, higher_is_better=higher_is_better)


def fitted(table: MetricTable) -> MetricParams:
    params = fit(table)
    assert params is not None
    return params


def ask(params: MetricParams, batch: int, epochs: float) -> float:
    return predict(params, MetricQuery(batch=batch, epochs=epochs)).value


def width(params: MetricParams, batch: int, epochs: float) -> float:
    found = predict(params, MetricQuery(batch=batch, epochs=epochs))
    return found.upper - found.low


def test_weights_without_nugget_interpolate_linearly():
    found = weights_at(np.log([1.0, 2.0, 8.0]), np.zeros(3), np.log([4.0, 100.0, 2.0]))
    np.testing.assert_allclose(found.T, [[0, 0.5, 0.5], [0, 0, 1], [0, 1, 0]], atol=1e-12)


def test_weights_with_a_large_nugget_are_the_mean_and_doubtful_curves_weigh_less():
    logs = np.log([1.0, 2.0, 4.0])
    np.testing.assert_allclose(weights_at(logs, np.full(3, 1e6), np.array([0.3])), 1 / 3, atol=1e-3)
    assert weights_at(logs, np.array([0.0, 1.0, 0.0]), logs[1:2])[1, 0] < 0.5


def test_gap_is_that_of_a_bridge():
    logs = np.log([1.0, 4.0])
    assert gap_at(logs, math.log(4)) == 0
    assert gap_at(logs, math.log(2)) == pytest.approx(math.log(2) / 2)
    assert gap_at(logs, math.log(16)) == pytest.approx(math.log(4))


def test_left_out_batch_is_interpolated():
    params = fitted(a_table(batches=(32, 64, 256, 512)))
    assert not params.few
    for e in (1, 5, 20):
        assert ask(params, 128, e) == pytest.approx(true_metric(128, e), abs=0.005)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_metric_goes_one_way_with_epochs(higher_is_better):
    params = fitted(a_table(noise=0.05, higher_is_better=higher_is_better))
    values = np.array([ask(params, 100, e) for e in np.linspace(0.5, 30, 60)])
    steps = np.diff(values if higher_is_better else -values)
    assert np.all(steps >= -1e-9)


def test_pooled_curve_lends_its_shape_to_a_batch_with_few_rows():
    whole = a_table(batches=(32, 64, 256, 512))
    lone = MetricSample(batch=128, epochs=20, metric=true_metric(128, 20) - 0.05)
    params = fitted(observe_metric(whole, lone))
    plain = fitted(whole)
    # drawn towards its single row, and by as much where it has none
    assert -0.05 < ask(params, 128, 20) - ask(plain, 128, 20) < -0.005
    assert -0.05 < ask(params, 128, 3) - ask(plain, 128, 3) < -0.005


def test_interval_holds_about_four_in_five_rows_of_a_left_out_batch():
    inside = []
    for seed in range(6):
        params = fitted(a_table(batches=(32, 64, 256, 512), noise=0.02, seed=seed))
        rng = np.random.default_rng(100 + seed)
        for e in range(1, 21):
            found = predict(params, MetricQuery(batch=128, epochs=e))
            inside.append(found.low <= true_metric(128, e) + 0.02 * rng.normal() <= found.upper)
    assert 0.65 <= np.mean(inside) <= 0.95


def test_interval_widens_away_from_the_samples():
    params = fitted(a_table(noise=0.01))
    assert width(params, 4096, 10) > width(params, 90, 10) >= width(params, 64, 10)
    assert width(params, 64, 80) > width(params, 64, 20)
    assert width(params, 64, 0.25) > width(params, 64, 1)


def test_single_batch_size_is_said_and_widens_elsewhere():
    params = fitted(a_table(batches=(64,), noise=0.01))
    assert params.few
    assert ask(params, 512, 10) == ask(params, 64, 10)
    assert width(params, 512, 10) > 2 * width(params, 64, 10)


def test_single_row_gives_itself_with_a_wide_interval():
    params = fitted(metric_table([MetricSample(batch=64, epochs=3, metric=0.5)], higher_is_better=True))
    found = predict(params, MetricQuery(batch=64, epochs=3))
    assert params.few
    assert found.value == 0.5
    assert found.upper - found.low > 0.1


def test_constant_metric_is_predicted_as_constant():
    samples = [MetricSample(batch=b, epochs=e, metric=0.7) for b in BATCHES for e in (1, 2, 3)]
    params = fitted(metric_table(samples, higher_is_better=True))
    assert ask(params, 100, 2) == pytest.approx(0.7)


def test_hundreds_of_batch_sizes_share_curves():
    samples = [
        MetricSample(batch=b, epochs=e, metric=true_metric(b, e)) for b in range(32, 432, 2) for e in (1, 9)
    ]
    params = fitted(metric_table(samples, higher_is_better=True))
    assert len(params.curves.log_batches) == 40
    assert ask(params, 101, 9) == pytest.approx(true_metric(101, 9), abs=0.01)


def test_empty_table_answers_with_the_prior():
    empty, prior = metric_table([], higher_is_better=True), fitted(a_table())
    assert fit(empty) is None
    assert fit(empty, prior) is prior


@pytest.mark.parametrize(("batch", "epochs"), [(0, 1.0), (8, math.nan), (8, 0.0), (8, math.inf)])
def test_impossible_queries_are_refused(batch, epochs):
    with pytest.raises(InputError, match="query"):
        predict(fitted(a_table()), MetricQuery(batch=batch, epochs=epochs))


@settings(max_examples=20, deadline=None)
@example([(1, 1, 0.0), (2, 1, 1.0), (2, 2, 0.0)], 1, 2.0, False)
@given(
    st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 50), st.floats(0, 100)), min_size=1, max_size=12),
    st.integers(1, 10**5),
    st.floats(0.01, 1000),
    st.booleans(),
)
def test_predictions_lie_near_the_data_inside_their_interval(rows, batch, epochs, higher_is_better):
    samples = [MetricSample(batch=b, epochs=e, metric=y) for b, e, y in rows]
    params = fitted(metric_table(samples, higher_is_better=higher_is_better))
    found = predict(params, MetricQuery(batch=batch, epochs=epochs))
    low, high = min(y for *_, y in rows), max(y for *_, y in rows)
    assert low - 1e-9 <= found.value <= high + 1e-9
    assert found.low <= found.value + 1e-12
    assert found.value <= found.upper < math.inf
