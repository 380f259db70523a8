"""What scripts do that was silently wrong or crashed: now right, or one line that refuses, in one process."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from coadapt import torch as coadapt  # noqa: E402
from coadapt.errors import InputError  # noqa: E402
from coadapt.torch import script_errors  # noqa: E402
from coadapt.torch.elastic.rendezvous_process import hosted  # noqa: E402
from coadapt.torch.rates import AdaScale, SquareRoot, rule_for  # noqa: E402
from coadapt.torch.sampler_order import LongOrder, sampler_order, undivided  # noqa: E402
from coadapt.torch.training.replica_guard import checksums, described  # noqa: E402
from coadapt.wire.agent import Variable  # noqa: E402

CE = nn.functional.cross_entropy


class Net(nn.Sequential):
    """A class of the script's own."""


def _data(count: int = 40) -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    x = torch.randn(count, 4, generator=made, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] > 0).long())


def _net() -> Net:
    torch.manual_seed(2)
    return Net(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def _learn(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    CE(model(batch[0]), batch[1]).backward()
    optimizer.step()


def _flat(model: Any) -> Any:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# -- what prepare returns behaves as what it replaces --------------------------------------------------------


def test_a_prepared_model_behaves_as_the_script_s_own() -> None:
    job, net = coadapt.init(batch="fixed"), _net()
    model, optimizer = job.prepare(net, _sgd(net))
    assert isinstance(model, Net)
    assert model[0] is net[0]
    assert len(model) == 3
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in net.named_parameters()]
    twin = copy.deepcopy(model)
    assert type(twin) is Net
    assert twin[0].weight is not net[0].weight
    assert type(AveragedModel(model).module) is Net
    memory = io.BytesIO()
    torch.save(model, memory)
    memory.seek(0)
    assert type(torch.load(memory, weights_only=False)) is Net
    model.temperature = 3.0
    assert net.temperature == 3.0
    model.eval()
    assert not net.training
    with model.no_sync():
        assert repr(model) == repr(net)
    assert model.half()[0].weight.dtype == net[0].weight.dtype == torch.float16
    assert optimizer.param_groups[0]["params"][0] is net[0].weight


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 2),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
        ),
        lambda o: lr_scheduler.ReduceLROnPlateau(o),
    ],
)
def test_a_schedule_s_state_can_be_saved_by_the_script(make: Callable[[Any], Any]) -> None:
    job, net = coadapt.init(batch="fixed"), _net()
    optimizer = _sgd(net)
    schedule = make(optimizer)
    kind = type(schedule)
    job.prepare(net, optimizer, schedule)
    pickle.loads(pickle.dumps(schedule.state_dict()))
    assert isinstance(schedule, kind)
    assert type(copy.copy(schedule)) is kind


def test_a_loader_has_the_attributes_of_a_dataloader() -> None:
    data = _data()
    loader = coadapt.init().loader(data, batch_size=8, num_workers=0)
    assert (loader.dataset, loader.batch_size, loader.num_workers, loader.drop_last) == (data, 8, 0, False)
    loader.sampler.set_epoch(3)
    assert len(loader.sampler) == 40


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"shuffle": False}, {"drop_last": True, "shuffle": True}]
)
def test_prepare_takes_a_dataloader_as_loader_does(options: dict[str, Any]) -> None:
    found = []
    for through_prepare in (True, False):
        job, net, data = coadapt.init(batch="fixed"), _net(), _data(43)
        if through_prepare:
            model, optimizer, loader = job.prepare(net, _sgd(net), DataLoader(data, batch_size=8, **options))
        else:
            model, optimizer = job.prepare(net, _sgd(net))
            loader = job.loader(data, batch_size=8, **options)
        steps = 0
        for _ in job.epochs(2):
            for batch in loader:
                _learn(model, optimizer, batch)
                steps += 1
        found.append((steps, _flat(net)))
    assert found[0][0] == found[1][0] == (10 if options.get("drop_last") else 12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda net: _sgd(net), "second optimizer"),
        (lambda net: _data(), "not a dataset"),
        (lambda net: DataLoader(_data(), batch_sampler=[[1, 2]]), "batch sampler of its own"),
        (lambda net: 5, "cannot use a int"),
    ],
)
def test_what_prepare_cannot_use_is_refused(more: Callable[[Any], Any], message: str) -> None:
    net = _net()
    with pytest.raises(InputError, match=message):
        coadapt.init().prepare(net, _sgd(net), more(net))


def test_prepare_without_an_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="needs an optimizer"):
        coadapt.init().prepare(_net())


# -- state that no checkpoint contains -------------------------------------------------------------------------


def _run(
    body: Callable[..., Any],
    *,
    others: Callable[[Any, Any], list[Any]] = lambda net, optimizer: [],
    unknown: Callable[[Any, Any], Any] = lambda net, optimizer: None,
    **options: Any,
) -> Any:
    job, net = coadapt.init(batch="fixed", **options), _net()
    optimizer = _sgd(net)
    held = unknown(net, optimizer)
    given = others(net, optimizer)
    model, optimizer, *given = job.prepare(net, optimizer, *given)
    loader = job.loader(_data(), batch_size=8)
    for epoch in job.epochs(3):
        for number, batch in enumerate(loader):
            body(model, optimizer, batch, held if held is not None else given, epoch, number)
    return job, net, given


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda net, o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50), "OneCycleLR"),
        (lambda net, o: lr_scheduler.ReduceLROnPlateau(o), "ReduceLROnPlateau"),
    ],
)
def test_a_schedule_that_is_not_given_to_prepare_is_refused(make: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"a {name} changes the learning rate.*job\.prepare"):
        _run(
            lambda model, optimizer, batch, *_: _learn(model, optimizer, batch),
            unknown=make,
            checkpoints=tmp_path,
        )


def test_parts_of_a_given_schedule_are_known(tmp_path: Path) -> None:
    def parts(net: Any, o: Any) -> list[Any]:
        return [
            lr_scheduler.SequentialLR(
                o, [lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
            )
        ]

    _run(
        lambda model, optimizer, batch, *_: _learn(model, optimizer, batch),
        others=parts,
        checkpoints=tmp_path,
    )


def test_a_copy_of_the_model_that_changes_and_is_not_saved_is_refused(tmp_path: Path) -> None:
    def body(model: Any, optimizer: Any, batch: Any, ema: Any, *_: Any) -> None:
        _learn(model, optimizer, batch)
        ema.update_parameters(model)

    with pytest.raises(InputError, match=r"a copy of the model \(Net\) changes in the loop"):
        _run(body, unknown=lambda net, o: AveragedModel(net), checkpoints=tmp_path)


@pytest.mark.parametrize("atomic", [8, 3])
def test_an_average_of_parameters_advances_with_steps_not_with_passes(atomic: int) -> None:
    job, net = coadapt.init(batch="fixed"), _net()
    optimizer, ema = _sgd(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model, optimizer, ema = job.prepare(net, optimizer, ema)
    loader, passes = job.loader(_data(), batch_size=8, per_gpu=(1, atomic)), 0
    for _ in job.epochs(2):
        for batch in loader:
            _learn(model, optimizer, batch)
            ema.update_parameters(model)
            passes += 1
    assert int(ema.n_averaged) == 10
    assert passes == (10 if atomic == 8 else 30)


def test_job_state_and_step_come_back(tmp_path: Path) -> None:
    def train(epochs: int) -> tuple[int, dict[str, Any]]:
        job, net = coadapt.init(batch="fixed", checkpoints=tmp_path), _net()
        model, optimizer = job.prepare(net, _sgd(net))
        loader = job.loader(_data(), batch_size=8)
        job.state.setdefault("seen", 0)
        for _ in job.epochs(epochs):
            for batch in loader:
                assert not job.stepped
                before = job.step
                _learn(model, optimizer, batch)
                assert (job.stepped, job.step) == (True, before + 1)
                job.state["seen"] += len(batch[0])
        job._loop.close()
        return job.step, dict(job.state)

    assert train(2) == (10, {"seen": 80})
    assert train(3) == (15, {"seen": 120})


def test_a_rate_by_a_counter_that_begins_again_is_refused(tmp_path: Path) -> None:
    def train(epochs: int, *, own: bool) -> None:
        job, net = coadapt.init(batch="fixed", checkpoints=tmp_path), _net()
        model, optimizer = job.prepare(net, _sgd(net))
        loader = job.loader(_data(), batch_size=8)
        step = 0
        for _ in job.epochs(epochs):
            for batch in loader:
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + (step if own else job.step))
                _learn(model, optimizer, batch)
                step += 1
        job._loop.close()

    train(1, own=True)
    train(2, own=False)
    with pytest.raises(InputError, match=r"as in the very first step.*job\.step"):
        train(3, own=True)


def test_numbers_that_the_loop_changes_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train(epochs: int) -> None:
        job, net = coadapt.init(batch="fixed", checkpoints=tmp_path), _net()
        model, optimizer = job.prepare(net, _sgd(net))
        loader = job.loader(_data(), batch_size=8)
        best_loss, untouched = float("inf"), 7
        for epoch in job.epochs(epochs):
            for batch in loader:
                _learn(model, optimizer, batch)
            best_loss = min(best_loss, 1.0 / (epoch + untouched))
        job._loop.close()

    train(2)
    assert "best_loss change in the loop" in caplog.text
    assert "untouched" not in caplog.text
    caplog.clear()
    train(3)
    assert "after the restart best_loss begin again" in caplog.text


# -- losses, steps, samplers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: CE(out, y, reduction="sum"),
        lambda out, y: CE(out, y, reduction="none").sum(),
        lambda out, y: 1.0 + CE(out, y, reduction="sum"),
    ],
)
def test_a_sum_over_the_batch_is_refused(loss: Callable[..., Any]) -> None:
    def body(model: Any, optimizer: Any, batch: Any, *_: Any) -> None:
        loss(model(batch[0]), batch[1]).backward()

    with pytest.raises(InputError, match="the loss is a sum over the batch"):
        _run(body)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: CE(out, y),
        lambda out, y: CE(out, y, reduction="sum") / len(y),
        lambda out, y: CE(out, y, reduction="none").mean(),
        lambda out, y: -out.log_softmax(1).gather(1, y[:, None]).sum(1).mean(),
        lambda out, y: (out - 1.0).square().sum(1).mean(),
    ],
)
def test_a_mean_over_the_batch_is_none(loss: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    def body(model: Any, optimizer: Any, batch: Any, *_: Any) -> None:
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    _run(body)
    assert "sum over the batch" not in caplog.text


def test_a_skipped_batch_is_used_up_and_said(caplog: pytest.LogCaptureFixture) -> None:
    def body(model: Any, optimizer: Any, batch: Any, held: Any, epoch: int, number: int) -> None:
        if (epoch, number) != (1, 2):
            _learn(model, optimizer, batch)

    job, _, _ = _run(body)
    assert job.step == 15
    assert "step 8 was skipped" in caplog.text


def test_a_script_that_never_steps_is_refused() -> None:
    job, net = coadapt.init(batch="fixed"), _net()
    job.prepare(net, _sgd(net))
    loader = job.loader(_data(), batch_size=2)

    def idle() -> None:
        for _ in job.epochs(5):
            for _ in loader:
                pass

    with pytest.raises(InputError, match="50 steps in a row were skipped"):
        idle()


@pytest.mark.parametrize("scaled", [True, False])
def test_accumulation_of_the_script_is_refused_with_what_to_do(scaled: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)

    def body(model: Any, optimizer: Any, batch: Any, held: Any, epoch: int, number: int) -> None:
        scaler.scale(CE(model(batch[0]), batch[1]) / 2).backward()
        if number % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    with pytest.raises(InputError, match=r"no optimizer\.step\(\).*batch_size = k x the batch, per_gpu"):
        _run(body, others=lambda net, o: [scaler])


def test_steps_without_epochs_end_exactly_and_continue(tmp_path: Path) -> None:
    def train(most: int) -> tuple[int, Any]:
        job, net = coadapt.init(batch="fixed", checkpoints=tmp_path / str(len(found))), _net()
        model, optimizer = job.prepare(net, _sgd(net))
        job.loader(_data(43), batch_size=8)
        made = 0
        for batch in job.steps(max_steps=most):
            _learn(model, optimizer, batch)
            made += 1
        job._loop.close()
        return made, _flat(net)

    found: list[Any] = []
    found.append(train(20))
    assert found[0][0] == 20
    interrupted: Any = None
    for most in (7, 12, 20):
        interrupted = train(most)
    assert interrupted[0] == 8
    torch.testing.assert_close(interrupted[1], found[0][1], rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="max_steps=0"):
        next(coadapt.init().steps(0))


class _Rank(Sampler[int]):
    world_size = 2

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 40, 2))


def test_samplers_of_one_rank_are_undivided_or_refused() -> None:
    data = _data()
    whole = undivided(DistributedSampler(data, num_replicas=4, rank=1, shuffle=True, seed=3))
    assert sorted(whole) == list(range(40))
    assert list(whole) == list(DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3))
    with pytest.raises(InputError, match="one of 2 replicas"):
        undivided(_Rank())


def test_an_endless_sampler_is_read_as_far_as_it_is_used() -> None:
    endless = RandomSampler(_data(), replacement=True, num_samples=10**10)
    order = sampler_order(endless, 0, seed=0)
    assert isinstance(order, LongOrder)
    assert len(order) == 10**10
    torch.manual_seed(4)
    first = order[0:10_000]
    draw = torch.rand(1)
    torch.manual_seed(4)
    assert torch.equal(torch.rand(1), draw), "the script's randomness is left alone"
    assert order[9_000:9_010] == first[9_000:9_010]
    assert sampler_order(endless, 0, seed=0)[5_000:5_010] == first[5_000:5_010]
    assert sampler_order(endless, 1, seed=0)[0:10] != first[0:10]
    with pytest.raises(InputError, match="set length="):
        sampler_order(itertools.repeat(1), 0, seed=0)  # type: ignore[arg-type]


class _Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.at, self.read = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[Any]:
        data = _data()
        while True:
            self.at += 1
            self.read += 1
            yield data[(self.at - 1) % 40]


def test_a_stream_with_a_state_is_not_read_again(tmp_path: Path) -> None:
    def train(most: int, stream: _Stream, where: Path) -> Any:
        job, net = coadapt.init(batch="fixed", checkpoints=where), _net()
        model, optimizer = job.prepare(net, _sgd(net))
        job.loader(stream, batch_size=8, length=400)
        for batch in job.steps(max_steps=most):
            _learn(model, optimizer, batch)
        job._loop.close()
        return _flat(net)

    whole = train(30, _Stream(), tmp_path / "whole")
    train(20, _Stream(), tmp_path / "parts")
    later = _Stream()
    rest = train(30, later, tmp_path / "parts")
    torch.testing.assert_close(rest, whole, rtol=0, atol=1e-12)
    assert later.read == 80


# -- rules and messages ----------------------------------------------------------------------------------------------


def test_only_steps_proportional_to_gradients_have_adascale() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 2))]
    assert isinstance(rule_for("auto", torch.optim.SGD(parameters, 0.1)), AdaScale)
    for kind in ("AdamW", "Adafactor", "RMSprop", "Muon"):
        if hasattr(torch.optim, kind):
            assert isinstance(rule_for("auto", getattr(torch.optim, kind)(parameters, lr=0.1)), SquareRoot), (
                kind
            )
    lion = type("Lion", (torch.optim.Optimizer,), {})(parameters, {"lr": 0.1})
    assert isinstance(rule_for("auto", lion), SquareRoot)


def test_an_error_of_ours_is_one_line_with_the_line_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        coadapt.init().prepare(_net())
    except InputError as error:
        told = script_errors.told(error, error.__traceback__)
    assert told.startswith("job.prepare() needs an optimizer")
    assert told.endswith(")")
    assert "test_silent_wrongs.py, line " in told


def test_checksums_see_every_bit() -> None:
    for kind in (torch.float64, torch.float32, torch.bfloat16, torch.int8):
        one = torch.arange(7).to(kind)
        other = one.clone()
        assert checksums([one]) == checksums([other])
        other[3] += 1
        assert checksums([one]) != checksums([other])
    assert described({"a": [1, torch.zeros(2)]}) == described({"a": [1, torch.zeros(2)]})
    assert described(object()) == "object"


def test_a_replica_alone_compares_examples_if_others_may_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared() -> str:
        job, net = coadapt.init(batch="fixed"), _net()
        job.prepare(net, _sgd(net))
        job.loader(_data(), batch_size=8)
        next(iter(job.epochs(1)))
        return str(job._loop.facts()["data"])

    assert "content" not in compared()  # nobody will ever ask
    store = hosted()
    monkeypatch.setenv(Variable.STORE, f"127.0.0.1:{store.port}")
    # a newcomer has read the same examples, and says so: without ours the two would differ
    assert "content" in compared()


def test_unfrozen_parameters_and_added_groups_come_back(tmp_path: Path) -> None:
    def train(epochs: int, where: str) -> Any:
        job, net = coadapt.init(batch="fixed", checkpoints=tmp_path / where), _net()
        net[0].requires_grad_(False)
        model, optimizer = job.prepare(net, torch.optim.SGD(net[2].parameters(), 0.1, momentum=0.9))
        loader = job.loader(_data(), batch_size=8)
        for epoch in job.epochs(epochs):
            if epoch == 1:
                model[0].requires_grad_(True)
                optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.05})
            for batch in loader:
                _learn(model, optimizer, batch)
        job._loop.close()
        return _flat(net)

    whole = train(4, "whole")
    train(2, "parts")
    torch.testing.assert_close(train(4, "parts"), whole, rtol=0, atol=1e-12)


def test_a_group_of_foreign_parameters_and_a_new_head_are_refused() -> None:
    job, net = coadapt.init(batch="fixed"), _net()
    model, optimizer = job.prepare(net, _sgd(net))
    with pytest.raises(InputError, match="does not have"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    job.loader(_data(), batch_size=8)
    model.extra = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"new parameter extra\.weight after job\.prepare"):
        next(job.epochs(1))
