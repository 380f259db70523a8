"""What is seen of a foreign trainer's steps, by hooks alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.torch.integrations import _hooks  # noqa: E402
from coadapt.torch.integrations._hooks import TrainerMonitor  # noqa: E402
from coadapt.torch.training.noise_scale import (  # noqa: E402
    Sample,
    estimate,
)


class _Reporter:
    listening = True

    def __init__(self, place: object) -> None:
        pass


def _watch(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[TrainerMonitor, list[Sample]]:
    monkeypatch.setattr(_hooks, "Reporter", _Reporter)
    watch, samples = TrainerMonitor(batch=4, **options), []
    monkeypatch.setattr(watch._noise, "add", lambda sample, scale, steps: samples.append(sample))
    return watch, samples


def _step(watch: TrainerMonitor, gradient: list[float], before: Any = lambda: None) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor(gradient)
    watch.gradient(lambda: [parameter])
    before()
    watch.stepped(epoch=None, work=None)


@pytest.mark.parametrize("examples", [None, 12])
def test_the_estimate_knows_how_many_examples_there_are(
    monkeypatch: pytest.MonkeyPatch, examples: int | None
) -> None:
    watch, samples = _watch(monkeypatch, examples=examples)
    for gradient in ([3.0, 0.0], [0.0, 4.0]):
        _step(watch, gradient)
    expected = estimate(
        (9 + 16) / 2, (9 + 16) / 4, batch=8, mean_inverse=1 / 4, initial_batch=4, population=examples or 1e300
    )
    assert expected is not None
    assert samples[0][:2] == pytest.approx(expected)
    # successive gradients of a small set: without it the squared gradient would be nothing at all
    assert (samples[0].sqr > 1) == (examples is not None)


def test_a_machine_that_is_busy_elsewhere_does_not_make_samples_look_cheap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, _ = _watch(monkeypatch)
    if watch._cost_clock is not time.process_time:
        pytest.skip("on an accelerator the clock on the wall is the one")
    for number in range(24):
        # the sleep is the load: waiting is not computing
        _step(watch, [1.0, float(number)], before=lambda: time.sleep(0.01))
    assert watch._sampling.plain
    assert max(watch._sampling.plain) < 0.01
