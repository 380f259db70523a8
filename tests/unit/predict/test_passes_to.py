"""From passes to work and back, and where a metric is reached."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.predict import work_epochs
from coadapt.predict.passes_to import passes_to
from coadapt.predict.samples import MetricSample, metric_table
from coadapt.predict.work_epochs import ByNoise, PowerLaw


@given(
    c=st.floats(0, 5),
    q=st.floats(0.05, 1.2),
    r=st.floats(0.4, 1.3),
    work=st.floats(0.1, 500),
    scale=st.floats(1, 100),
)
@settings(max_examples=100, deadline=None)
def test_work_and_passes_are_inverse(c: float, q: float, r: float, work: float, scale: float) -> None:
    law = PowerLaw(initial=32.0, c=c, q=q, r=r)
    batch, done = np.array([32.0 * scale]), np.array([work])
    passes = law.passes(batch, done)
    assert passes[0] >= work
    assert law.work(batch, passes)[0] == pytest.approx(work, rel=1e-6)


@given(phi=st.lists(st.floats(1, 1e5), min_size=2, max_size=10), work=st.floats(0.1, 30))
@settings(max_examples=50, deadline=None)
def test_work_by_noise_is_inverse_and_costs_at_most_in_proportion(phi: list[float], work: float) -> None:
    law = ByNoise(initial=32.0, epochs=tuple(range(1, len(phi) + 1)), phi=tuple(phi))
    batch = np.array([32.0, 320.0])
    passes = law.passes(batch, np.array([work, work]))
    assert passes[0] == pytest.approx(work)
    assert work <= passes[1] * (1 + 1e-9)
    assert passes[1] <= 10 * work * (1 + 1e-9)
    assert law.work(batch, passes) == pytest.approx([work, work])


def curve(batch: int, passes: float) -> float:
    return 1 - float(np.exp(-passes / (5 * (1 + batch / 400))))


def a_table(sign: float = 1.0) -> object:
    rows = [
        MetricSample(
            batch=batch, epochs=float(e), metric=curve(batch, e) if sign > 0 else 1 - curve(batch, e)
        )
        for batch in (50, 100, 200, 400)
        for e in range(1, 40, 2)
    ]
    return metric_table(rows, higher_is_better=sign > 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_passes_to_a_metric_are_found_at_every_batch_size(sign: float) -> None:
    sizes = np.array([50.0, 100.0, 200.0, 400.0])
    true = -5 * (1 + sizes / 400) * np.log(0.2)
    found = passes_to(a_table(sign), 0.8 if sign > 0 else 0.2, sizes)  # type: ignore[arg-type]
    assert found.passes == pytest.approx(true, rel=0.08)
    assert (found.log_sd >= 0.01).all()
    assert (found.reached > 0.9).all()


def test_a_metric_never_seen_is_not_reached() -> None:
    found = passes_to(a_table(), 1.5, np.array([50.0, 400.0]))  # type: ignore[arg-type]
    assert (found.reached < 0.01).all()


def test_one_sample_is_no_reason_to_fail() -> None:
    table = metric_table([MetricSample(batch=8, epochs=3.0, metric=0.5)], higher_is_better=True)
    assert work_epochs.fit(table).c == 0
    found = passes_to(table, 0.5, np.array([8.0, 16.0]))
    assert np.isfinite(found.passes).all()
    assert found.log_sd[1] > found.log_sd[0]
