"""From passes to work and back, and where a metric is reached."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.prediction.samples import passes as work_epochs
from coadapt.prediction.samples.passes import ByNoise, PowerLaw, _gap, passes_to
from coadapt.prediction.samples.sample_table import MetricSample, metric_table


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


def test_a_batch_size_seen_pass_by_pass_is_as_measured() -> None:
    # its own two rows say 1.5 passes, whatever its neighbours do
    rows = [
        MetricSample(batch=batch, epochs=float(e), metric=low if e == 1 else high)
        for batch, low, high in ((16, 0.60, 0.80), (32, 0.50, 0.70), (64, 0.40, 0.80), (128, 0.30, 0.70))
        for e in (1, 2)
    ]
    found = passes_to(metric_table(rows, higher_is_better=True), 0.6, np.array([64.0, 32.0]))
    assert found.passes == pytest.approx([1.5, 1.5], rel=0.02)
    assert (found.log_sd < 0.05).all()


def test_a_batch_size_with_rows_far_apart_leans_on_its_neighbours() -> None:
    rows = [
        MetricSample(batch=batch, epochs=float(e), metric=curve(batch, e))
        for batch in (50, 200)
        for e in range(1, 40)
    ]
    rows += [MetricSample(batch=100, epochs=e, metric=curve(100, e)) for e in (2.0, 36.0)]
    found = passes_to(metric_table(rows, higher_is_better=True), 0.8, np.array([100.0]))
    exact = 5 * (1 + 100 / 400) * float(np.log(5))
    assert found.passes[0] == pytest.approx(exact, rel=0.08)


def test_a_law_is_found_where_few_rows_are_near_the_metric() -> None:
    # a row or two of each batch size lie within a tenth of the range: too few for three numbers
    rows = [
        MetricSample(
            batch=batch, epochs=float(e), metric=0.95 * (1 - float(np.exp(-e / (4 * (1 + batch / 500)))))
        )
        for batch in (32, 64, 128, 256)
        for e in range(4, 31, 2)
    ]
    law = work_epochs.fit(metric_table(rows, higher_is_better=True), 0.6)
    found = law.passes(np.array([256.0]), np.array([4.0]))[0] / 4
    assert found == pytest.approx((1 + 256 / 500) / (1 + 32 / 500), rel=0.1)


def test_a_crossing_is_less_sure_the_further_it_is_from_the_rows_of_its_batch_size() -> None:
    # one row at 60 passes, said to be above the target from 30, 10 or 2 passes on
    near, further, far = (_gap(np.array([60.0]), at) for at in (30.0, 10.0, 2.0))
    assert near < further < far
    assert far > 1.0
    assert _gap(np.array([1.0, 2.0, 3.0]), 1.5) == 0.0


def _runs(lengths: dict[int, int]) -> object:
    rows = [
        MetricSample(batch=batch, epochs=float(e), metric=curve(batch, e))
        for batch, length in lengths.items()
        for e in range(1, length + 1)
    ]
    return metric_table(rows, higher_is_better=True)


def test_first_epochs_of_other_batch_sizes_leave_their_passes_open() -> None:
    batches = np.array([50.0, 200.0, 400.0])

    def spread(lengths: dict[int, int]) -> list[float]:
        table = _runs(lengths)
        return passes_to(table, 0.95, batches, work_epochs.fit(table)).log_sd.tolist()

    alone = spread({50: 40})
    started = spread({50: 40, 200: 1, 400: 1})
    whole = spread({50: 40, 200: 40, 400: 40})
    assert alone[0] < 0.1
    for at in (1, 2):
        assert whole[at] < 0.05
        assert started[at] > 3 * whole[at]
        assert alone[at] > started[at]
    assert started[2] > started[1]


def test_a_noise_scale_is_trusted_where_it_hardly_matters() -> None:
    table, batches = _runs({50: 40}), np.array([50.0, 400.0])

    def found(phi: float) -> tuple[float, float]:
        law = ByNoise(initial=50.0, epochs=tuple(range(1, 41)), phi=(phi,) * 40)
        answer = passes_to(table, 0.95, batches, law)
        return float(answer.passes[1] / answer.passes[0]), float(answer.log_sd[1])

    (few, sure), (many, unsure) = found(50_000.0), found(100.0)
    assert few < 1.02 < 1.5 < many
    assert sure < 0.06
    assert unsure == pytest.approx(0.25 * np.log(many), rel=0.2)
