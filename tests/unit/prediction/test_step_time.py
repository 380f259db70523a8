from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Configuration
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time._base import fit
from coadapt.prediction.step_time.pollux import StepTimeParams
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable, observe
from tests.data import data_dir
from tests.unit.prediction.pollux_tables import TASKS, a_measurement, a_table, exact_rows, measured_rows

DATA = data_dir()
KNOWN = StepTimeParams(
    alpha_c=0.05, beta_c=0.004, alpha_n=0.2, beta_n=0.004, alpha_r=0.08, beta_r=0.002, gamma=1.5
)
SHAPES = [
    (n, k, m) for m in (16, 64) for n, k in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 8), (4, 16), (8, 32))
]


def test_step_time_follows_the_formula_by_hand():
    p = StepTimeParams(alpha_c=1.0, beta_c=0.5, alpha_n=4.0, beta_n=0.5, alpha_r=2.0, beta_r=0.25, gamma=2.0)
    grad = 1.0 + 0.5 * 4  # 3
    assert p.step_time(1, 1, 4) == pytest.approx(grad)
    assert p.step_time(1, 4, 4) == pytest.approx(np.hypot(grad, 2.0 + 0.25 * 2))
    assert p.step_time(2, 2, 4) == pytest.approx(5.0)
    assert p.step_time(2, 2, 4, 3) == pytest.approx(5.0 + 3 * grad)
    assert p.throughput(2, 2, 4, 3) == pytest.approx(2 * 4 * 4 / 14.0)
    np.testing.assert_allclose(p.step_time([1, 2], [1, 2], 4), [grad, 5.0])


positive = st.floats(1e-8, 10.0)


@given(
    st.builds(
        StepTimeParams,
        **dict.fromkeys(("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r"), positive),
        gamma=st.floats(1.0, 10.0),
    ),
    st.integers(1, 16),
    st.integers(1, 64),
    st.integers(1, 4096),
    st.integers(0, 8),
)
def test_throughput_is_positive_and_intervals_hold_their_value(params, nodes, replicas, atomic, accumulation):
    nodes = min(nodes, replicas)
    assert params.throughput(nodes, replicas, atomic, accumulation) > 0
    x = Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic, accumulation=accumulation)
    estimate = params.predict(x)
    assert 0 < estimate.low <= estimate.value <= estimate.upper


def test_distinct_nodes_names_all_that_step_time_tells_apart():
    nodes = np.arange(1, 17)
    full = KNOWN.step_time(nodes, 16, 32)
    np.testing.assert_array_equal(full, KNOWN.step_time(KNOWN.distinct_nodes(nodes), 16, 32))


def test_published_fit_recovers_a_job_that_follows_the_model():
    params = fit(a_table(exact_rows(KNOWN, SHAPES)), model="pollux")
    assert isinstance(params, StepTimeParams)
    # beyond what was measured the penalties show: 64 replicas
    for nodes, replicas, atomic, error in [
        (1, 1, 32, 0.02),
        (1, 4, 48, 0.03),
        (3, 12, 32, 0.05),
        (16, 64, 64, 0.1),
    ]:
        truth = KNOWN.step_time(nodes, replicas, atomic)
        assert params.step_time(nodes, replicas, atomic) == pytest.approx(truth, rel=error)
    assert params.alpha_c == pytest.approx(KNOWN.alpha_c, rel=0.1)
    assert params.beta_c == pytest.approx(KNOWN.beta_c, rel=0.05)
    assert params.max_replicas == 32
    assert params.points == (2, 6, 8)


@pytest.mark.parametrize("name", ["node-aware", "pollux"])
def test_fit_of_an_unmeasured_type_is_the_prior(name):
    table = a_table([(1, 1, 32, 0.5, 0.0)])
    assert fit(EMPTY_TABLE, model=name) is None
    assert fit(table, gpu_type="a100", model=name) is None
    assert fit(table, KNOWN, gpu_type="a100", model=name) is KNOWN
    assert fit(table, KNOWN, model=name) not in (None, KNOWN)


@pytest.mark.parametrize("name", ["node-aware", "pollux"])
def test_fit_keeps_gpu_types_apart(name):
    rows = exact_rows(KNOWN, [(1, 1, 16), (1, 1, 64)])
    table = a_table(rows)
    for nodes, replicas, atomic, step_s, sync_s in rows:
        table = observe(
            table, a_measurement(nodes, replicas, atomic, step_s / 4, sync_s / 4, gpu_type="a100")
        )
    slow, fast = fit(table, model=name), fit(table, gpu_type="a100", model=name)
    assert slow is not None
    assert fast is not None
    assert slow.step_time(1, 1, 32) == pytest.approx(4 * fast.step_time(1, 1, 32), rel=0.01)


@pytest.mark.parametrize("name", ["node-aware", "pollux"])
def test_fit_is_computed_once_per_thing_learned(name):
    def fit(table):
        return step_time.fit(table, model=name)

    table = a_table([(1, 1, 48, 0.71, 0.01)])
    fit(table)
    before = step_time.fit_count()
    for _ in range(100):
        table = observe(table, a_measurement(1, 1, 48, 0.71, 0.01))
        fit(table)
    assert step_time.fit_count() == before
    # noise far below what a fit could use
    for i in range(100):
        table = observe(table, a_measurement(1, 1, 48, 0.71 + 1e-5 * (-1) ** i, 0.01, step_var=1e-10))
        fit(table)
    assert step_time.fit_count() == before
    fit(observe(table, a_measurement(1, 2, 48, 0.8, 0.1)))
    assert step_time.fit_count() == before + 1


@pytest.mark.parametrize("name", ["node-aware", "pollux"])
def test_predict_is_wider_where_less_is_known(name):
    few = fit(a_table(exact_rows(KNOWN, SHAPES[:2])), model=name)
    many = fit(a_table(exact_rows(KNOWN, SHAPES)), model=name)
    assert few is not None
    assert many is not None

    def width(params, nodes, replicas):
        estimate = params.predict(Configuration(nodes=nodes, replicas=replicas, atomic_batch=32))
        return estimate.upper / estimate.low

    assert width(few, 1, 2) > width(many, 1, 2)
    assert width(few, 2, 8) > width(few, 1, 2)  # several nodes never measured
    assert width(many, 16, 64) > width(many, 8, 32)  # beyond the most replicas measured


def test_table_and_params_are_plain_data():
    table = a_table(exact_rows(KNOWN, SHAPES))
    assert msgspec.json.decode(msgspec.json.encode(table), type=StepTimeTable) == table
    params = fit(table)
    assert params is not None
    assert msgspec.json.decode(msgspec.json.encode(params), type=type(params)) == params
    published = fit(table, model="pollux")
    assert published is not None
    assert msgspec.json.decode(msgspec.json.encode(published), type=StepTimeParams) == published
    assert hash(table) == hash(a_table(reversed(exact_rows(KNOWN, SHAPES))))


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="shared measurements not found; set COADAPT_DATA")
def test_fit_reaches_the_published_error_on_measured_tasks():
    assert DATA is not None
    errors = {}
    for task in TASKS:
        rows = measured_rows(DATA / "pollux" / task)
        params = fit(a_table(rows), model="pollux")
        assert params is not None
        nodes, replicas, atomic, step_s, _ = np.array(rows).T
        predicted = params.step_time(nodes, replicas, atomic)
        errors[task] = float(np.mean(np.abs(predicted / step_s - 1)))
    assert np.mean(list(errors.values())) <= 0.095, errors
    assert max(errors.values()) <= 0.12, errors


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="shared measurements not found; set COADAPT_DATA")
@pytest.mark.parametrize("name", ["node-aware", "pollux"])
def test_predict_holds_most_true_step_times_of_a_task_measured_at_twelve_points(name):
    assert DATA is not None
    held = []
    for task, seed in [(t, i) for t in ("bert", "cifar10", "imagenet") for i in range(4)]:
        rng = np.random.default_rng(seed)
        rows = measured_rows(DATA / "pollux" / task)
        order = rng.permutation(len(rows))
        params = fit(a_table(rows[i] for i in order[:12]), model=name)
        assert params is not None
        for i in order[12:72]:
            nodes, replicas, atomic, step_s, _ = rows[i]
            x = Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic)
            held.append(params.predict(x).low <= step_s <= params.predict(x).upper)
    assert 0.7 <= np.mean(held) <= 0.95
