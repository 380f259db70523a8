from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from coadapt.errors import InputError
from coadapt.prediction.samples import epoch_time
from coadapt.prediction.samples.epoch_time import PARAMETERS, EpochParams, EpochQuery, fit, log_time, predict
from coadapt.prediction.samples.epoch_time import _terms as log_terms
from coadapt.prediction.samples.sample_table import EpochSample, EpochTable, epoch_table, observe_epoch

GRID = [(b, k) for k in (1, 2, 4, 8, 16) for b in (64, 128, 256, 512, 1024)]


def true_epoch_s(batch: int, workers: int, nodes: int) -> float:
    """50,000 examples, 2 ms each, 20 ms per step, synchronisation slower between nodes; 3 s of validation."""
    sync_s = 0.0 if workers == 1 else (0.03 if nodes == 1 else 0.12 * (workers / 8) ** 0.3)
    return 50_000 / batch * (0.02 + 0.002 * batch / workers + sync_s) + 3.0


def a_table(configurations: list[tuple[int, int]], noise: float = 0.0, seed: int = 0) -> EpochTable:
    rng = np.random.default_rng(seed)
    samples = []
    for batch, workers in configurations:
        factor = math.exp(noise * rng.normal())
        nodes = -(-workers // 4)
        samples.append(
            EpochSample(batch=batch, workers=workers, epoch_s=factor * true_epoch_s(batch, workers, nodes))
        )
    return epoch_table(samples, gpus_per_node=4)


def fitted(table: EpochTable) -> EpochParams:
    params = fit(table)
    assert params is not None
    return params


def width(params: EpochParams, batch: int, workers: int) -> float:
    found = predict(params, EpochQuery(batch=batch, workers=workers))
    return math.log(found.upper / found.low)


def relative_error(params: EpochParams, batch: int, workers: int) -> float:
    found = predict(params, EpochQuery(batch=batch, workers=workers)).value
    return abs(found / true_epoch_s(batch, workers, -(-workers // 4)) - 1)


def test_form_by_hand():
    # a=2, b=1/4, r=3, s=6, p=q=0, d=ln 2, g=2, h=0, o ~ 0
    theta = np.array([math.log(2), math.log(0.25), math.log(3), 0, math.log(6), 0, math.log(2), 0, 0, -50])
    x = np.array([[8, 1, 1], [16, 2, 1], [16, 2, 2], [24, 3, 3]], dtype=float)
    by_hand = [4, 5, math.hypot(4, 12), math.hypot(4, 6)]
    np.testing.assert_allclose(np.exp(log_time(theta, x)), by_hand)


def test_fit_finds_the_times_it_was_given_and_those_between():
    params = fitted(a_table(GRID))
    assert not params.few
    assert max(relative_error(params, b, k) for b, k in GRID) < 0.02
    assert max(relative_error(params, b, k) for b, k in ((96, 3), (384, 6), (700, 12))) < 0.05


def test_eight_samples_suffice_for_a_useful_answer():
    errors = []
    for seed in range(4):
        chosen = np.random.default_rng(seed).choice(len(GRID), 8, replace=False)
        params = fitted(a_table([GRID[i] for i in chosen], noise=0.02, seed=seed))
        assert params.few
        errors += [relative_error(params, b, k) for b, k in GRID]
    assert np.median(errors) < 0.1


def test_intervals_hold_about_four_in_five_unseen_times():
    rng = np.random.default_rng(1)
    inside = []
    for seed in range(4):
        order = rng.permutation(len(GRID))
        params = fitted(a_table([GRID[i] for i in order[:17]], noise=0.05, seed=seed))
        for i in order[17:]:
            batch, workers = GRID[i]
            found = predict(params, EpochQuery(batch=batch, workers=workers))
            truth = true_epoch_s(batch, workers, -(-workers // 4)) * math.exp(0.05 * rng.normal())
            inside.append(found.low <= truth <= found.upper)
    assert 0.6 <= np.mean(inside) <= 0.97


def test_interval_widens_beyond_the_samples_and_with_fewer_of_them():
    params = fitted(a_table(GRID, noise=0.03))
    assert width(params, 1024, 256) > 1.5 * width(params, 1024, 16)
    assert width(params, 65_536, 16) > 1.5 * width(params, 1024, 16)
    lone = fitted(a_table([(256, 4)]))
    assert lone.few
    assert width(lone, 256, 64) > 2 * width(params, 256, 16)
    assert predict(lone, EpochQuery(batch=256, workers=4)).value == pytest.approx(
        true_epoch_s(256, 4, 1), rel=0.05
    )


@pytest.mark.parametrize(
    "configurations", [[(128, 1)], [(128, k) for k in (1, 2, 4, 8)], [(b, 4) for b in (64, 128, 256)]]
)
def test_constant_columns_still_give_an_answer(configurations):
    params = fitted(a_table(configurations))
    assert params.few
    for batch, workers in configurations:
        assert relative_error(params, batch, workers) < 0.15


def test_nodes_of_a_query_matter_and_default_to_packed():
    params = fitted(a_table(GRID))
    packed = predict(params, EpochQuery(batch=256, workers=4))
    assert predict(params, EpochQuery(batch=256, workers=4, nodes=1)) == packed
    assert predict(params, EpochQuery(batch=256, workers=4, nodes=4)).value > packed.value


def test_empty_table_answers_with_the_prior():
    empty = epoch_table([], gpus_per_node=4)
    prior = fitted(a_table(GRID[:3]))
    assert fit(empty) is None
    assert fit(empty, prior) is prior


def test_observed_sample_alters_the_fit():
    table = a_table(GRID[:10])
    more = observe_epoch(table, EpochSample(batch=999, workers=9, epoch_s=500.0))
    assert fit(more) != fit(table)


def test_impossible_queries_are_refused():
    params = fitted(a_table(GRID[:3]))
    with pytest.raises(InputError, match="query: workers is 0"):
        predict(params, EpochQuery(batch=8, workers=0))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.integers(1, 32), st.floats(1e-3, 1e6)), min_size=1, max_size=5
    ),
    st.integers(1, 10**6),
    st.integers(1, 512),
)
def test_any_samples_give_a_finite_interval_around_the_value(rows, batch, workers):
    samples = [EpochSample(batch=b, workers=k, epoch_s=s) for b, k, s in rows]
    found = predict(fitted(epoch_table(samples, gpus_per_node=4)), EpochQuery(batch=batch, workers=workers))
    assert 0 < found.low <= found.value <= found.upper < math.inf


def test_residual_gradient_matches_differences():
    rng = np.random.default_rng(0)
    points = np.stack([rng.normal(size=12), np.log(rng.integers(1, 5, 12)), rng.integers(1, 4, 12)], axis=1)
    objective = epoch_time._Objective(points, 0.05 * rng.normal(size=12))
    at = np.log([0.1, 1.0, 0.5, 1.5, 0.05, 0.05, 1.0])
    by_differences = approx_fprime(at, lambda logs: objective(logs)[0], 1e-6)
    np.testing.assert_allclose(objective(at)[1], by_differences, rtol=1e-3, atol=1e-3)


def test_a_residual_that_is_the_same_everywhere_is_fitted():
    """The search for sizes and lengths once stepped so far that it overflowed."""
    pairs = [(batch, workers) for workers in range(1, 65, 3) for batch in (64, 256, 1024)]
    points = np.array([[math.log(b / k), math.log(k), min(-(-k // 4), 3)] for b, k in pairs])
    assert np.isfinite(epoch_time.fit_residual(points, np.full(len(points), 10.0)).logs).all()


def test_form_slopes_match_differences():
    x = np.array([[64, 1, 1], [64, 2, 1], [128, 4, 1], [256, 8, 2], [512, 32, 8]], dtype=np.float64)
    theta = np.random.default_rng(3).normal(size=PARAMETERS)
    for row in x:
        by_differences = approx_fprime(theta, lambda t, row=row: float(log_time(t, row[None])[0]), 1e-7)
        assert log_terms(theta, row[None])[1][0] == pytest.approx(by_differences, abs=1e-5)


@pytest.mark.parametrize("compute_s", [0.06, 0.3, 1.5])
def test_what_many_workers_hide_is_not_claimed_to_be_known(compute_s: float):
    """A second of synchronising: samples of many workers say little of one alone, whose time differs 25-fold between these cases."""

    def step_s(batch: int, workers: int) -> float:
        own = compute_s * (0.1 + batch / workers / 64)
        return own + max((1.0 + 0.02 * workers) * (workers > 1) - 0.7 * own, 0.0)

    rng = np.random.default_rng(5)
    samples = [
        EpochSample(
            batch=batch,
            workers=workers,
            epoch_s=1000 / batch * step_s(batch, workers) * math.exp(0.02 * rng.normal()),
        )
        for batch in (64, 128, 256, 512)
        for workers in (8, 12, 16, 24, 32, 48, 64)
    ]
    params = fitted(epoch_table(samples, gpus_per_node=4))
    for batch in (64, 256, 512):
        found = predict(params, EpochQuery(batch=batch, workers=1))
        true, middle = math.log(1000 / batch * step_s(batch, 1)), math.log(found.value)
        assert abs(true - middle) <= 2 * math.log(found.upper / found.value)
        near = predict(params, EpochQuery(batch=batch, workers=20))
        assert near.upper / near.low < 1.2


def test_form_has_as_many_parameters_as_few_is_counted_by():
    assert not fitted(a_table(GRID[:PARAMETERS])).few
    assert fitted(a_table(GRID[: PARAMETERS - 1])).few
