"""A lone replica beyond M0: once in so many steps one is larger, in two passes, for the noise's sake; and it is one step."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    IterableDataset,
    TensorDataset,
)

from coadapt import torch as coadapt  # noqa: E402
from coadapt.torch.batches import (  # noqa: E402
    Chosen,
    Situation,
)
from coadapt.torch.elastic.process_group import here  # noqa: E402
from coadapt.torch.loader import order_of  # noqa: E402
from coadapt.torch.training import decision_history  # noqa: E402
from coadapt.torch.training.noise_scale import Sample  # noqa: E402
from coadapt.torch.training.paced_device import (  # noqa: E402
    Pace,
    PaceFile,
)
from coadapt.torch.training.step_plan import (  # noqa: E402
    Split,
    Step,
    plan_at,
)

torch.set_num_threads(1)
EXAMPLES, M0, BATCH, PASSES = 330, 8, 20, 4


class _Given:
    def __init__(self, twice: int, atomic: int = BATCH) -> None:
        self.twice, self.atomic = twice, atomic

    def choose(self, now: Situation) -> Chosen:
        return Chosen(BATCH, self.atomic, why="given", twice=self.twice)


def _data() -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, 4, generator=made, dtype=torch.float64)
    return x, (x[:, 0] + 0.5 * x[:, 1] ** 2 > 0).long()


class _Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(zip(*_data(), strict=True))


def _model(dropout: float = 0.0) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2)).double()


class _Run:
    """Trains to the end; ``sizes`` of what the loader gave, ``samples`` of the noise."""

    def __init__(
        self,
        rule: Any,
        *,
        most: int = 64,
        stream: bool = False,
        pace: Pace | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        model = _model(dropout)
        self.job = coadapt.init(batch=rule, rate="none", **options)
        self.job._training.pace = pace
        model, optimizer = self.job.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        data: Any = _Stream() if stream else TensorDataset(*_data())
        given = {"length": EXAMPLES} if stream else {}
        loader = self.job.loader(data, M0, most, (1, 64), **given)
        self.samples: list[Sample] = []
        self.sizes: list[int] = []
        self._listen()
        for _ in self.job.passes(PASSES):
            for x, y in loader:
                self.sizes.append(len(x))
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        self.parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def _listen(self) -> None:
        add = self.job._training.noise.add

        def note(sample: Sample, scale: float, steps: int = 1) -> None:
            self.samples.append(sample)
            add(sample, scale, steps)

        self.job._training.noise.add = note  # type: ignore[method-assign]


def _by_hand(sizes: list[int], *, shuffle: bool) -> Any:
    """Steps of these sizes, each in one pass, by plain PyTorch."""
    model = _model()
    optimizer, (x, y) = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), _data()
    orders = (order_of(EXAMPLES, number, seed=0, shuffle=shuffle) for number in itertools.count())
    left: list[int] = []
    for size in sizes:
        left = left or [int(each) for each in next(orders)]
        some, left = left[:size], left[size:]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("stream", [False, True])
def test_larger_steps_are_steps_and_the_only_samples(stream: bool) -> None:
    run = _Run(_Given(5), stream=stream)
    split = Split((BATCH,), BATCH, 5, 2 * BATCH)
    sizes = []
    for number in range(PASSES):
        position = 0
        while position < EXAMPLES:
            sizes.append(plan_at(split, 0, number=number, position=position, length=EXAMPLES).batch)
            position += sizes[-1]
    torch.testing.assert_close(run.parameters, _by_hand(sizes, shuffle=not stream), rtol=0, atol=1e-9)
    assert run.job._training.ledger.step == len(sizes)
    assert sizes.count(2 * BATCH) >= 10
    assert sum(run.sizes) == PASSES * EXAMPLES
    # a step that the end of a pass has cut short may say too little
    assert sizes.count(2 * BATCH) <= len(run.samples) <= -(-PASSES * EXAMPLES // (5 * BATCH))
    assert not any(sample.successive for sample in run.samples)


def test_a_replayed_run_has_two_passes_in_the_same_steps(tmp_path: Path) -> None:
    # with dropout passes are not all the same: which steps have two must not depend on this machine's speed
    first = _Run(_Given(3), dropout=0.3)
    decision_history.save(tmp_path / "history.jsonl", first.job.history)
    again = _Run(_Given(7), dropout=0.3, same_schedule=tmp_path / "history.jsonl")
    assert again.sizes == first.sizes
    assert torch.equal(again.parameters, first.parameters)


def test_a_fixed_interval_holds_for_steps_of_two_passes_too() -> None:
    run = _Run(_Given(3), sample_every=11)
    assert run.job._training.split == Split((BATCH,), BATCH, 11, 2 * BATCH)


def test_the_largest_batch_is_not_exceeded() -> None:
    run = _Run(_Given(4), most=BATCH + 5)
    assert run.job._training.split.double == BATCH + 5
    assert {13, 12} <= set(run.sizes) <= {13, 12, BATCH, *range(1, 13)}


def test_steps_that_have_several_passes_anyway_are_as_they_were() -> None:
    run = _Run(_Given(5, atomic=BATCH // 2), sample_every=2)
    assert run.job._training.split.twice == 0
    assert set(run.sizes) == {BATCH // 2}


def test_without_samples_every_example_is_still_used_once() -> None:
    # an asynchronous architecture has no statistics; the schedule that is repeated had larger steps all the same
    run = _Run(_Given(5), most=BATCH + 5)
    entries = run.job.history
    assert any(entry.double == BATCH + 5 for entry in entries)
    alone = _Run(_Given(5), most=BATCH + 5, sync="async-servers:1")
    assert alone.job._training.split.twice == 0
    assert sum(alone.sizes) == PASSES * EXAMPLES


def test_at_m0_every_step_that_may_be_sampled_is_a_pair_with_the_one_before() -> None:
    run = _Run("fixed", noise_budget=1e9)
    steps = run.job._training.ledger.step
    # the first ones are sampled two by two, until it is known that all may be
    assert len(run.samples) > 0.8 * steps
    assert all(sample.successive for sample in run.samples)


class _Late:
    """Small at first, so that passes of the larger batch are made alone before one is made beside another's gradient."""

    def choose(self, now: Situation) -> Chosen:
        return Chosen(BATCH, BATCH, why="late", twice=7) if now.epoch >= 0.99 else Chosen(M0, M0, why="first")


class _Scarce(torch.autograd.Function):
    """No room for a whole batch beside a gradient that is kept."""

    job: Any = None

    @staticmethod
    def forward(ctx: Any, values: Any) -> Any:
        ctx.in_host_memory = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        beside = _Scarce.job._training.gradients._aside is not None
        if beside and len(grad) > BATCH // 2 and not ctx.in_host_memory:
            raise torch.OutOfMemoryError("no room")
        return grad.clone()


class _ScarceNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 8).double(), nn.Linear(8, 2).double()

    def forward(self, values: Any) -> Any:
        return self.last(torch.tanh(_Scarce.apply(self.first(values))))


def test_a_second_pass_that_does_not_fit_beside_the_first_ones_gradient_is_repeated() -> None:
    net: Any = _ScarceNet()
    _Scarce.job = job = coadapt.init(batch=_Late(), rate="none")
    net, optimizer = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    loader = job.loader(TensorDataset(*_data()), M0, 64, (1, 64))
    for _ in job.passes(3):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    assert job._training.split.atomic <= BATCH // 2


class _Told(Pace):
    """Says how long a pass lasts, and does not sleep."""

    def sleep(self, took: float, step: Step, *, last: bool) -> float:
        return self.seconds(step.pieces[-1].end - step.pieces[-1].begin, last=last)


def test_times_are_those_of_usual_steps() -> None:
    pace = _Told(PaceFile(seconds={"1": 1.0, "10": 10.0, "20": 20.0}), here())
    run = _Run(_Given(3), pace=pace)
    rows = run.job._loop.decisions.table.rows
    assert [(row.atomic_batch, row.replicas) for row in rows] == [(BATCH, 1)]
    assert rows[0].fit_step_s == pytest.approx(20.0)
