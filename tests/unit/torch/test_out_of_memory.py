"""Passes that do not fit into memory: repeated with the same gradient, whichever half of the pass ran out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from coadapt import torch as coadapt  # noqa: E402
from coadapt.torch.training.out_of_memory import (  # noqa: E402
    MemoryGuard,
    MemoryLimit,
)


def _in_host_memory() -> bool:
    """Whether tensors saved for the backward pass are moved off the device at present."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class _Needs(torch.autograd.Function):
    """Runs out of memory, forward or backward, where the activations of more than ``most`` examples are on the device."""

    @staticmethod
    def forward(ctx: Any, x: Any, most: int, where: str, tried: list[int]) -> Any:
        ctx.fits = len(x) <= most or _in_host_memory()
        ctx.where, ctx.tried = where, tried
        if where == "forward":
            tried.append(len(x))
            if not ctx.fits:
                raise torch.OutOfMemoryError("no room")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if ctx.where == "backward":
            ctx.tried.append(len(grad))
            if not ctx.fits:
                raise torch.OutOfMemoryError("no room")
        return grad.clone(), None, None, None


class Small(nn.Module):
    """A device with little memory. Returns logits, and a mean among the outputs."""

    def __init__(self, most: int, where: str, *, dropout: float = 0.0, train_norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 8).double(), nn.BatchNorm1d(8, momentum=0.5).double()
        self.drop, self.last = nn.Dropout(dropout), nn.Linear(8, 3).double()
        self.most, self.where, self.tried = most, where, []  # type: int, str, list[int]
        self.norm.train(train_norm)

    def forward(self, x: Any) -> dict[str, Any]:
        hidden = self.drop(self.norm(self.first(x)))
        hidden = _Needs.apply(hidden, self.most, self.where, self.tried)
        logits = self.last(self.drop(torch.tanh(hidden)))
        return {"logits": logits, "loss": logits.square().mean(), "name": "small"}


def _limit(examples: int = 8, *, gradient_held: bool = False) -> MemoryLimit:
    memory = MemoryLimit()
    memory.begin_pass(examples=examples, gradient_held=gradient_held)
    return memory


def _gradients(model: nn.Module, called: Any, x: Any, context: Any = None) -> list[Any]:
    model.zero_grad()
    with context or nullcontext():
        found = called(x)
    (found["logits"].double().exp().mean() + found["loss"].double()).backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("train_norm", [False, True])
def test_a_pass_that_does_not_fit_has_the_same_gradient(
    where: str, dropout: float, autocast: bool, train_norm: bool
) -> None:
    """Bit for bit: with dropout, under bfloat16 autocast, with batch statistics; and the generators continue alike."""
    kind = torch.float32 if autocast else torch.float64
    x = torch.randn(11, 4, dtype=kind, requires_grad=True)
    whole = Small(99, where, dropout=dropout, train_norm=train_norm).to(kind)
    model = Small(5, where, dropout=dropout, train_norm=train_norm).to(kind)
    memory, found = _limit(11), []
    for each, called in ((whole, whole), (model, MemoryGuard(model, memory))):
        torch.manual_seed(7)
        x.grad = None
        context = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        gradients = _gradients(each, called, x, context)
        found.append([*gradients, x.grad, *(b.clone() for b in each.buffers()), torch.get_rng_state()])
    assert len(model.tried) == 2
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert any(bool(g.any()) for g in found[0][:4])
    assert memory.unannounced == 5
    # a step is divided by it only once all replicas know
    assert memory.atomic is None


def test_the_repeated_pass_runs_under_the_autocast_of_the_first() -> None:
    class Seen(nn.Module):
        def __init__(self, most: int) -> None:
            super().__init__()
            self.small = Small(most, "backward").float()
            self.kinds: list[Any] = []

        def forward(self, x: Any) -> Any:
            found = self.small(x)
            self.kinds.append(found["logits"].dtype)
            return found

    model = Seen(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = MemoryGuard(model, _limit())(torch.randn(8, 4))
    found["loss"].float().backward()
    assert model.kinds == [torch.bfloat16] * 2


def test_what_has_fit_a_few_times_runs_without_a_guard() -> None:
    model, memory = Small(99, "backward"), _limit()
    guarded = MemoryGuard(model, memory)
    small, large = torch.randn(4, 4, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    kinds = []
    for x in (small, small, small, small, large, small, large, large, large, small):
        kinds.append("_Node" in str(guarded(x)["logits"].grad_fn))
        _gradients(model, guarded, x)
    assert kinds == [True] * 3 + [False] + [True] * 4 + [False] * 2


def test_a_known_size_that_no_longer_fits_forward_is_repeated() -> None:
    x = torch.randn(8, 4, dtype=torch.float64)
    whole, model, memory = Small(99, "forward"), Small(99, "forward"), _limit()
    guarded = MemoryGuard(model, memory)
    for _ in range(4):
        _gradients(model, guarded, x)
    model.most = 5
    assert all(
        torch.equal(a, b)
        for a, b in zip(_gradients(whole, whole, x), _gradients(model, guarded, x), strict=True)
    )
    assert memory.unannounced == 4


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_one_example_that_does_not_fit_is_the_end(where: str) -> None:
    model = Small(0, where)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        _gradients(model, MemoryGuard(model, _limit(1)), torch.randn(1, 4, dtype=torch.float64))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_pass_that_does_not_fit_with_activations_in_host_memory_is_the_end(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Small(4, where)
    monkeypatch.setattr(f"{__name__}._in_host_memory", lambda: False)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        _gradients(model, MemoryGuard(model, _limit()), torch.randn(8, 4, dtype=torch.float64))


def test_outputs_need_not_have_the_examples_first() -> None:
    class Turned(Small):
        def forward(self, x: Any) -> Any:
            return {key: each.T if key == "logits" else each for key, each in super().forward(x).items()}

    x = torch.randn(4, 4, dtype=torch.float64)
    whole, model = Turned(99, "backward"), Turned(2, "backward")
    before, after = _gradients(whole, whole, x), _gradients(model, MemoryGuard(model, _limit(4)), x)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_output_may_be_changed_in_place() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    found = []
    for wrap in (lambda model: model, lambda model: MemoryGuard(model, _limit())):
        model = Small(99, "backward")
        logits = wrap(model)(x)["logits"]
        logits += 1
        logits.square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_script_that_runs_out_of_memory_learns_the_same_and_remembers(where: str, tmp_path: Any) -> None:
    data = TensorDataset(torch.randn(40, 4, dtype=torch.float64), torch.randint(0, 3, (40,)))

    def run(most: int, directory: Any) -> tuple[Any, Any]:
        job = coadapt.init(batch="fixed", checkpoints=directory)
        model = Small(most, where)
        prepared, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        loader = job.loader(data, batch_size=16)
        for _ in job.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(prepared(x)["logits"], y).backward()
                optimizer.step()
        return model, job

    whole, _ = run(99, None)
    small, job = run(5, tmp_path)
    torch.testing.assert_close(list(whole.parameters()), list(small.parameters()), rtol=0, atol=1e-9)
    # 16 was tried and repeated in the first step, 8 and its repetition in the first pass of the second, then its other pass
    assert [size for size in small.tried if size > 5] == [16, 16, 8, 8, 8, 8]
    assert list(dict.fromkeys(entry.atomic for entry in job.history)) == [16, 8, 4]
    # after a restart the limit is known
    again, job = run(5, tmp_path)
    assert again.tried == []
    assert job._loop.memory.atomic == 4
