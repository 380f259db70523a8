"""Conformance suites of what runs in the training process: subclass one, implement ``make``, run pytest.

The other suites are in ``coadapt.testing``, which does not import PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from coadapt.model import Batch, Configuration, Measurement
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable, observe
from coadapt.torch.batches._base import BatchRule, Chosen, Situation
from coadapt.torch.rates._base import Progress, RateRule

_LIMITS = Batch(initial=32, max=4096, per_gpu_min=8, per_gpu_max=512)


def situations() -> Iterator[Situation]:
    """Before anything is known, and later: replicas, noise, epochs and metrics differ."""
    for replicas in (1, 2, 7, 64):
        nodes = -(-replicas // 4)
        first = Situation(
            limits=_LIMITS,
            nodes=nodes,
            replicas=replicas,
            gpu_type="gpu",
            batch=0,
            atomic=0,
            accumulation=0,
            grad=(0.0, 0.0),
            table=EMPTY_TABLE,
            epoch=0.0,
        )
        yield first
        atomic = max(_LIMITS.per_gpu_min, 64 // replicas)
        for epoch, noise in ((1.0, 1.0), (55.0, 1e4)):
            yield first._replace(
                batch=replicas * atomic,
                atomic=atomic,
                grad=(1.0, noise),
                table=_table(nodes, replicas),
                epoch=epoch,
                example_s=tuple(0.01 * (1 + i % 2) for i in range(replicas)),
                metrics={"loss": 0.7},
                rate=0.1,
                samples=20,
                length=50_000,
            )


def _table(nodes: int, replicas: int) -> StepTimeTable:
    table = EMPTY_TABLE
    for atomic in (8, 32, 128):
        config = Configuration(nodes=nodes, replicas=replicas, atomic_batch=atomic)
        step_s = 0.05 + 0.001 * atomic
        table = observe(table, Measurement(config=config, count=50, step_s=step_s, sync_s=0.1 * step_s))
    return table


class BatchRuleConformance:
    """Subclass and implement ``make``."""

    def make(self) -> BatchRule:
        """A new rule; all of them alike."""
        raise NotImplementedError

    def test_choices_keep_the_limits(self) -> None:
        for now in situations():
            chosen = self.make().choose(now)
            assert isinstance(chosen, Chosen)
            least = min(now.limits.initial, now.limits.max)
            most = max(now.limits.max, now.replicas * now.limits.per_gpu_min)
            assert least <= chosen.batch <= most, f"{chosen} for {now}"
            assert 1 <= chosen.atomic <= now.limits.per_gpu_max
            assert chosen.why, "a choice says why in one line"
            assert "\n" not in chosen.why

    def test_speeds_are_of_all_replicas_or_of_none(self) -> None:
        for now in situations():
            speeds = self.make().choose(now).speeds
            assert len(speeds) in (0, now.replicas)
            assert all(0 < speed < math.inf for speed in speeds)

    def test_same_situation_same_choice(self) -> None:
        for now in situations():
            assert self.make().choose(now) == self.make().choose(now)


class RateRuleConformance:
    """Subclass and implement ``make``."""

    #: A number of epochs after which any warm-up is over.
    warmed_up = 1e6

    def make(self) -> RateRule:
        """A new rule; all of them alike."""
        raise NotImplementedError

    def test_factors_are_finite_and_not_negative(self) -> None:
        rule = self.make()
        for scale in (0.25, 1.0, 3.0, 128.0):
            for grad in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1e-12, 1e12)):
                for epoch in (0.0, 0.5, 90.0):
                    assert 0 <= rule.factor(Progress(scale, grad, epoch)) < math.inf

    def test_factor_is_one_at_the_first_batch_size_after_any_warm_up(self) -> None:
        for grad in ((0.0, 0.0), (1.0, 10.0)):
            assert math.isclose(self.make().factor(Progress(1.0, grad, self.warmed_up)), 1.0)

    def test_same_progress_same_factor(self) -> None:
        rule, at = self.make(), Progress(4.0, (1.0, 10.0), 3.0)
        first = rule.factor(at)
        rule.factor(Progress(9.0, (2.0, 1.0), 5.0))
        assert rule.factor(at) == first == self.make().factor(at)

    def test_steady_rules_look_at_no_epoch(self) -> None:
        rule = self.make()
        if getattr(rule, "steady", False):
            factors = {rule.factor(Progress(4.0, (1.0, 10.0), epoch)) for epoch in (0.0, 1.0, 50.0)}
            assert len(factors) == 1
