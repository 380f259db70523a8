"""SampleSchedule stays within its budget, and all replicas sample the same steps."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.torch.training.noise_scale import SampleSchedule


def _run(
    sampling: SampleSchedule, steps: int, *, plain_s: float, extra_s: float, pairs: bool = False
) -> list[bool]:
    chosen, half = [], False
    for _ in range(steps):
        sampled = sampling.now()
        chosen.append(sampled)
        (sampling.cost if sampled else sampling.plain).append(extra_s if sampled else plain_s)
        if sampled and pairs and not half:
            half = True
            sampling.again()
        elif sampled:
            half = False
            sampling.settle(*sampling.times(), pair=pairs)
    return chosen


@pytest.mark.parametrize("extra", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("pairs", [False, True])
def test_cost_stays_below_the_budget_after_the_first_steps(extra: float, pairs: bool) -> None:
    chosen = _run(SampleSchedule(0.02), 3000, plain_s=1.0, extra_s=extra, pairs=pairs)
    assert all(chosen[:10])
    late = chosen[100:]
    assert sum(late) * extra / len(late) <= 0.0205
    assert sum(late) * extra / len(late) >= 0.015


def test_what_costs_nothing_is_sampled_always() -> None:
    assert all(_run(SampleSchedule(0.02), 300, plain_s=1.0, extra_s=0.0)[30:])
    # but a step of a millisecond notices even the hooks
    assert sum(_run(SampleSchedule(0.02), 300, plain_s=0.001, extra_s=0.0)[30:]) <= 30


def test_a_fixed_interval_is_kept() -> None:
    chosen = _run(SampleSchedule(every=7), 70, plain_s=1.0, extra_s=0.5)
    assert [i for i, sampled in enumerate(chosen) if sampled] == list(range(0, 70, 7))


def test_an_expensive_sample_is_still_taken_now_and_then() -> None:
    assert sum(_run(SampleSchedule(0.02), 2000, plain_s=1.0, extra_s=1000.0)[100:]) >= 9
