"""Plain training scripts beside the same with our lines, in one process: docs/torch.md has a line for each of these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from coadapt import torch as coadapt  # noqa: E402
from coadapt.torch.batches import (  # noqa: E402
    Chosen,
    Situation,
)
from coadapt.torch.loader import (  # noqa: E402
    order_of,
    sampler_order,
)

torch.set_num_threads(1)
EXAMPLES, M0 = 90, 16


def _data() -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, 4, generator=made, dtype=torch.float64)
    return TensorDataset(x, (x @ torch.randn(4, 3, generator=made, dtype=torch.float64)).argmax(1))


def _model(norm: bool = False) -> nn.Module:
    torch.manual_seed(2)
    middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 3)).double()


def _loss(model: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _flat(model: nn.Module) -> Any:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def _plain(
    epochs: int, body: Callable[..., None], *, model: nn.Module, optimizer: Any, schedule: Any = None
) -> Any:
    """The script as it was: the same order of examples, batches of M0."""
    data = _data()
    for epoch in range(epochs):
        order = order_of(EXAMPLES, epoch, seed=0, shuffle=True).tolist()
        for begin in range(0, EXAMPLES, M0):
            batch = data[order[begin : begin + M0]]
            body(model, optimizer, schedule, batch)
    return _flat(model)


def _ours(
    epochs: int,
    body: Callable[..., None],
    *,
    model: nn.Module,
    optimizer: Any,
    schedule: Any = None,
    atomic: int = M0,
) -> Any:
    """The script with our lines."""
    job = coadapt.init(batch="fixed")
    given = (model, optimizer) if schedule is None else (model, optimizer, schedule)
    model, optimizer, *_ = job.prepare(*given)
    loader = job.loader(_data(), batch_size=M0, max_batch_size=64, per_gpu=(1, atomic))
    for _ in job.epochs(epochs):
        for batch in loader:
            body(model, optimizer, schedule, batch)
    return _flat(model)


def _simple(model: nn.Module, optimizer: Any, schedule: Any, batch: Any) -> None:
    optimizer.zero_grad()
    _loss(model, batch).backward()
    optimizer.step()


def _clipped(model: nn.Module, optimizer: Any, schedule: Any, batch: Any) -> None:
    optimizer.zero_grad()
    _loss(model, batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def _per_step(model: nn.Module, optimizer: Any, schedule: Any, batch: Any) -> None:
    _loss(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()


def _sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


@pytest.mark.parametrize("atomic", [M0, 8, 5, 1])
@pytest.mark.parametrize("body", [_simple, _clipped])
def test_a_script_at_m0_learns_what_it_learned_before(body: Callable[..., None], atomic: int) -> None:
    one, other = _model(), _model()
    before = _plain(3, body, model=one, optimizer=_sgd(one))
    after = _ours(3, body, model=other, optimizer=_sgd(other), atomic=atomic)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-9)


@pytest.mark.parametrize("atomic", [M0, 5])
def test_adam_with_several_groups_and_a_schedule_per_step(atomic: int) -> None:
    found = []
    for run, options in ((_plain, {}), (_ours, {"atomic": atomic})):
        model = _model()
        groups = [
            {"params": model[0].parameters(), "lr": 0.01},
            {"params": model[2].parameters(), "lr": 0.03},
        ]
        optimizer = torch.optim.AdamW(groups)
        steps = 3 * math.ceil(EXAMPLES / M0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.01, 0.03], total_steps=steps + 1)
        found.append(run(3, _per_step, model=model, optimizer=optimizer, schedule=schedule, **options))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("atomic", [M0, 8])
def test_a_grad_scaler_sees_whole_gradients_only(atomic: int) -> None:
    found = []
    for run, options in ((_plain, {}), (_ours, {"atomic": atomic})):
        model, scaler = _model(), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

        def body(model: nn.Module, optimizer: Any, schedule: Any, batch: Any) -> None:
            optimizer.zero_grad()
            schedule.scale(_loss(model, batch)).backward()
            schedule.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            schedule.step(optimizer)
            schedule.update()

        found.append(run(2, body, model=model, optimizer=_sgd(model), schedule=scaler, **options))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_a_step_that_the_scaler_skips_is_no_end() -> None:
    model, scaler = _model(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    count = itertools.count()

    def body(model: nn.Module, optimizer: Any, schedule: Any, batch: Any) -> None:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        schedule.scale(loss * (math.inf if next(count) == 3 else 1.0)).backward()
        schedule.step(optimizer)
        schedule.update()

    assert torch.isfinite(_ours(2, body, model=model, optimizer=_sgd(model), schedule=scaler)).all()
    assert next(count) == 2 * math.ceil(EXAMPLES / M0)


def test_a_compiled_model() -> None:
    one, other = _model(), _model()
    before = _plain(2, _simple, model=one, optimizer=_sgd(one))
    compiled = torch.compile(other, backend="eager")
    after = _ours(2, _simple, model=compiled, optimizer=_sgd(other))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-9)


def test_batch_norm_at_one_pass_per_step() -> None:
    one, other = _model(norm=True), _model(norm=True)
    before = _plain(2, _simple, model=one, optimizer=_sgd(one))
    after = _ours(2, _simple, model=other, optimizer=_sgd(other))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-9)
    torch.testing.assert_close(one[1].running_var, other[1].running_var)


class _Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(_data())


def test_an_iterable_dataset_is_read_in_its_order() -> None:
    seen = []
    job = coadapt.init(batch="fixed")
    model = _model()
    model, optimizer = job.prepare(model, _sgd(model))
    loader = job.loader(_Stream(), batch_size=M0, length=EXAMPLES)
    for _ in job.epochs(2):
        for batch in loader:
            seen.append(batch[0])
            _simple(model, optimizer, None, batch)
    assert torch.equal(torch.cat(seen), torch.cat([_data()[:][0]] * 2))


def test_a_sampler_of_the_script_is_repeatable_and_leaves_its_randomness_alone() -> None:
    def indices() -> list[Any]:
        job = coadapt.init(batch="fixed", seed=4)
        model = _model()
        model, optimizer = job.prepare(model, _sgd(model))
        sampler = WeightedRandomSampler([1.0] * 10 + [0.0] * (EXAMPLES - 10), num_samples=40)
        loader = job.loader(_data(), batch_size=M0, sampler=sampler)
        seen = []
        for _ in job.passes(2):
            for batch in loader:
                seen.append(batch[0])
                _simple(model, optimizer, None, batch)
        return seen

    one = indices()
    torch.manual_seed(99)
    other = indices()
    assert [len(batch) for batch in one] == [16, 16, 8] * 2
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[3])
    before = torch.get_rng_state()
    sampler_order(WeightedRandomSampler([1.0] * 10, num_samples=40), 0, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_a_validation_loader_is_a_plain_one_and_the_model_needs_no_gradient_there() -> None:
    job = coadapt.init(batch="fixed")
    model = _model()
    model, optimizer = job.prepare(model, _sgd(model))
    loader = job.loader(_data(), batch_size=M0)
    for _ in job.epochs(1):
        for batch in loader:
            _simple(model, optimizer, None, batch)
        model.eval()
        with torch.no_grad():
            right = [int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(_data(), batch_size=32)]
        model.train()
        assert job.report(val_acc=(sum(right), EXAMPLES)) == {"val_acc": sum(right) / EXAMPLES}
    assert model.append == model.module.append
    assert set(model.state_dict()) == set(_model().state_dict())


class _Growing:
    """Doubles at every epoch."""

    def choose(self, now: Situation) -> Chosen:
        return Chosen(min((now.batch or M0 // 2) * 2, 64), 16, why="doubled")


def test_epochs_are_work_and_schedules_follow_it(tmp_path: Path) -> None:
    def run(**options: Any) -> tuple[Any, Any, Any]:
        job = coadapt.init(checkpoints=tmp_path / str(len(options)), sample_every=1, **options)
        model = _model()
        optimizer = _sgd(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        model, optimizer, schedule = job.prepare(model, optimizer, schedule)
        loader = job.loader(_data(), batch_size=M0, max_batch_size=64, per_gpu=(1, 16))
        for epoch in job.epochs(4):
            for batch in loader:
                _per_step(model, optimizer, schedule, batch)
            assert job.work == pytest.approx(EXAMPLES * (epoch + 1), abs=64)
        return _flat(model), schedule.last_epoch, job

    one, steps, job = run(batch=_Growing())
    assert steps == 4 * math.ceil(EXAMPLES / M0)
    assert list(dict.fromkeys(e.batch for e in job.history)) == [16, 32, 64]
    # repeated from its history, a run is the same: batches and rates
    other, steps, again = run(batch="fixed", same_schedule=tmp_path / "1" / "history.jsonl")
    assert torch.equal(one, other)
    assert [(e.step, e.batch, e.grad) for e in again.history] == [
        (e.step, e.batch, e.grad) for e in job.history
    ]


def test_a_loop_that_is_left_early_counts_its_last_step() -> None:
    job = coadapt.init(batch="fixed")
    model = _model()
    model, optimizer = job.prepare(model, _sgd(model))
    loader = job.loader(_data(), batch_size=M0, shuffle=False)
    seen = []
    for _ in job.epochs(1):
        for batch in loader:
            _simple(model, optimizer, None, batch)
            seen.append(batch[0])
            break
        for batch in loader:
            _simple(model, optimizer, None, batch)
            seen.append(batch[0])
    assert torch.equal(torch.cat(seen), _data()[:][0])


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_restart_at_the_end_of_an_epoch_finds_what_the_loop_had_set(epochs: int, tmp_path: Path) -> None:
    """The checkpoint is of the moment after the last step; validation and the schedule are still to come."""

    def run(stop: bool) -> Any:
        job = coadapt.init(batch="fixed", checkpoints=tmp_path)
        model = _model(norm=True)
        optimizer = _sgd(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        model, optimizer, schedule = job.prepare(model, optimizer, schedule)
        loader = job.loader(_data(), batch_size=M0)
        bodies = 0
        for _ in job.epochs(2):
            for batch in loader:
                loss = _loss(model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if stop and bodies == epochs - 1:
                job._loop.coordinator.save(wait=True)
                return model
            bodies += 1
            schedule.step()
            job.report(loss=loss.detach())
        assert bodies == 3 - epochs
        assert schedule.last_epoch == 2
        return model

    before = run(stop=True)
    saved = {name: value.clone() for name, value in before.state_dict().items()}
    after = run(stop=False)
    if epochs == 2:
        for name, value in after.state_dict().items():
            assert torch.equal(value, saved[name]), name


def test_a_function_of_the_script_is_called_at_every_epoch_and_may_change_the_rule() -> None:
    job = coadapt.init(batch="fixed")
    model = _model()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(_data(), batch_size=M0, max_batch_size=4 * M0, per_gpu=(1, 4 * M0))
    calls = []

    @job.on_epoch
    def double(told: Any) -> None:
        calls.append(told is job)
        if len(calls) == 2:
            job.rule = _Growing()

    batches = []
    for _ in job.epochs(3):
        for batch in loader:
            optimizer.zero_grad()
            _loss(model, batch).backward()
            optimizer.step()
        batches.append(job.batch_size)
    assert calls == [True] * 3
    assert batches[0] == M0
    assert batches[1] > M0
