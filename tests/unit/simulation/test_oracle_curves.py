"""True curves: the published conventions, on a truth that can be seen through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coadapt.model import (
    Batch,
    Configuration,
    JobSpec,
    JobSubmitted,
    Measurement,
    NodeJoined,
    Record,
    Role,
    parse_cluster,
)
from coadapt.scheduler import SchedulerState
from coadapt.simulation.truth.oracle_curves import TruthCurves

LIMITS = Batch(initial=8, max=64, per_gpu_min=4, per_gpu_max=16)


class ATruth:
    """A step takes 1 s per node plus 0.1 s per example; half a second per node is synchronisation."""

    epochs, gpu_types, max_workers, data_size = 4, ("t4",), 16, 80

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[int, ...], int]] = []

    def limits(self, gpu_type: str) -> Batch:
        return LIMITS

    def epoch_marks(self) -> tuple[float, ...]:
        return (10.0, 20.0, 30.0, 40.0)

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        self.asked.append((shape, atomic_batch))
        return len(shape) + 0.1 * atomic_batch, 0.5 * len(shape)

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        return 1.0, 3.0

    def steps_until(self, batch: int, epoch: int) -> float:
        return 100.0 * (epoch + 1) / batch

    def metric(self, batch: int, epoch: int) -> float | None:
        return None


def a_curve(truth: ATruth, *, epoch: float | None = None, mode: Any = "fixed") -> Any:
    spec = JobSpec(
        name="a",
        profile="p",
        roles=(Role(max=16),),
        requested_batch=32,
        batch=Batch(initial=8, max=64, per_gpu_min=4, per_gpu_max=16, mode=mode),
    )
    state = SchedulerState()
    events: list[Any] = [NodeJoined(node=node) for node in parse_cluster("4x4").nodes]
    for seq, event in enumerate([*events, JobSubmitted(job="a", spec=spec)]):
        state.apply(Record(seq=seq, at=0.0, event=event))
    if epoch is not None:
        config = Configuration(nodes=1, replicas=1, atomic_batch=8)
        state.jobs["a"].measure(Measurement(config=config, epoch=epoch, work=80.0 * epoch), 1, 0.0)
    return TruthCurves({"p": truth}).of(state)["a"]


def test_oracle_step_time_is_on_full_nodes_first() -> None:
    truth = ATruth()
    assert a_curve(truth).step_time_at(24, 2, 6, "gpu") == pytest.approx(2 + 0.4)
    assert truth.asked == [((4, 2), 4)]


def test_oracle_accumulates_on_one_gpu_even_at_the_reference_batch() -> None:
    # 8 examples in two passes of 4: a step of 1.4 s, and one more pass without its synchronisation
    assert a_curve(ATruth()).step_time_at(8, 1, 1, "gpu") == pytest.approx(1.4 + 0.9)


def test_oracle_counts_remaining_steps_in_whole_epochs() -> None:
    assert a_curve(ATruth()).remaining_steps(32) == pytest.approx(100 * 3 / 32)
    assert a_curve(ATruth(), epoch=2.0).remaining_steps(32) == pytest.approx(100 / 32)
    assert a_curve(ATruth(), epoch=3.0).remaining_steps(32) == 1.0
    assert a_curve(ATruth(), epoch=1.0).remaining_work() == 240.0


def test_oracle_asks_the_truth_once() -> None:
    truth = ATruth()
    curve = a_curve(truth)
    assert curve.step_time_at(32, 1, 2, "gpu") == curve.step_time_at(32, 1, 2, "gpu")
    assert len(truth.asked) == 1


def test_oracle_goodput_is_that_of_the_fixed_batch_or_of_the_best() -> None:
    fixed = a_curve(ATruth()).goodput(1, np.array([0, 2, 4]))
    # batch 32 on 4 GPUs: 1.8 s; gain (3 + 1) / (3/4 + 1) steps at M0 = 8
    assert fixed.tolist() == pytest.approx([0.0, 8 * 4 / 1.75 / 2.6, 8 * 4 / 1.75 / 1.8])
    best = a_curve(ATruth(), mode="adaptive").goodput(1, np.array([2]))
    assert best[0] > fixed[1]
