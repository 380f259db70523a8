from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Configuration, Measurement
from coadapt.prediction.gradient_noise import (
    MAX_POINTS,
    NoiseParams,
    NoiseTable,
    carried,
    fit,
    observe,
    predict,
    steps,
)

EMPTY = NoiseTable(initial_batch=128.0)


def a_report(work, phi, batch=128, **changes):
    config = Configuration(nodes=1, replicas=1, atomic_batch=batch)
    values = {"grad_sqr": 1.0, "grad_var": phi / 128.0, "work": work, **changes}
    return Measurement(config=config, **values)


def fitted(reports):
    table = EMPTY
    for report in reports:
        table = observe(table, report)
    params = fit(table)
    assert params is not None
    return params


def test_noise_scale_is_followed_over_progress():
    params = fitted([a_report(w, 10 * math.sqrt(w)) for w in np.linspace(1e4, 1e6, 40)])
    for work in (5e4, 3e5, 9e5):
        found = predict(params, (work, 128))
        assert found.value == pytest.approx(10 * math.sqrt(work), rel=0.1)
        assert found.low < 10 * math.sqrt(work) < found.upper
    beyond = predict(params, (4e6, 128))
    assert beyond.value == pytest.approx(10 * math.sqrt(4e6), rel=0.3)
    assert beyond.upper / beyond.low > predict(params, (9e5, 128)).upper / predict(params, (9e5, 128)).low


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e5), st.floats(1.0, 1e5))
def test_noise_scale_grows_with_the_batch_by_at_most_its_ratio(phi, batch, to):
    change = float(carried(math.log(phi), batch, to)) - math.log(phi)
    assert change * math.copysign(1, to - batch) + 1e-12 >= 0
    assert abs(change) <= abs(math.log(to / batch)) + 1e-9


def test_steps_by_hand_where_noise_hardly_matters():
    # phi so large that every example counts: half the steps at twice the batch
    params = fitted([a_report(w, 1e9) for w in (1e4, 1e5, 1e6)])
    assert steps(params, 256, 1e6).value == pytest.approx(1e6 / 256, rel=1e-3)
    # at the reference batch size a step is a step, whatever the noise
    quiet = fitted([a_report(w, 5.0) for w in (1e4, 1e5, 1e6)])
    assert steps(quiet, 128, 1e6).value == pytest.approx(1e6 / 128)
    assert steps(quiet, 128, 1e6, since=5e5).value == pytest.approx(5e5 / 128)
    assert steps(quiet, 4096, 1e6).value > 0.5 * 1e6 / 128


@given(
    st.lists(
        st.tuples(st.floats(1.0, 1e7), st.floats(1e-3, 1e8), st.integers(1, 4096)), min_size=1, max_size=8
    ),
    st.floats(1.0, 1e8),
    st.integers(1, 10**5),
)
def test_intervals_hold_their_value(reports, work, batch):
    params = fitted([a_report(*report) for report in reports])
    phi = predict(params, (work, batch))
    assert 0 < phi.low <= phi.value <= phi.upper
    needed = steps(params, batch, work)
    assert 0 < needed.low <= needed.value <= needed.upper


def test_reports_without_noise_say_nothing():
    assert fit(EMPTY) is None
    known = NoiseParams(initial_batch=1.0, support=((0.0, 0.0, 0.0),), scale=1.0)
    assert fit(EMPTY, known) is known
    for report in (
        a_report(1e4, 100, grad_sqr=None),
        a_report(None, 100),
        a_report(0.0, 100),
        a_report(math.nan, 100),
        a_report(1e4, 100, grad_sqr=math.nan),
        a_report(1e4, 100, grad_sqr=-1.0),
        a_report(1e4, 0.0),
    ):
        assert observe(EMPTY, report) is EMPTY


def test_table_is_bounded_ordered_and_plain():
    table = EMPTY
    for work in np.random.default_rng(0).permutation(np.arange(1, 4 * MAX_POINTS)):
        table = observe(table, a_report(float(work), 100.0))
    assert len(table.points) <= MAX_POINTS
    assert list(table.points) == sorted(table.points)
    assert msgspec.json.decode(msgspec.json.encode(table), type=NoiseTable) == table
    assert observe(table, a_report(7.5, 100.0)) is not table
    once = observe(EMPTY, a_report(7.5, 100.0))
    assert observe(once, a_report(7.5, 100.0)) is once
