"""Passes that do not fit into memory: the same gradients in pieces, whichever half of the pass ran out."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import coadapt.torch as coadapt  # noqa: E402
from coadapt.torch.memory import Guarded, MemoryLimit  # noqa: E402


class _Needs(torch.autograd.Function):
    """Runs out of memory where more than ``most`` examples come through, forward or backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, most: int, where: str, tried: list[int]) -> Any:
        ctx.told = most, where, tried
        if where == "forward":
            tried.append(len(x))
            if len(x) > most:
                raise torch.OutOfMemoryError("no room")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        most, where, tried = ctx.told
        if where == "backward":
            tried.append(len(grad))
            if len(grad) > most:
                raise torch.OutOfMemoryError("no room")
        return grad.clone(), None, None, None


class Small(nn.Module):
    """A device with little memory. Returns logits, and a mean among the outputs."""

    def __init__(self, most: int, where: str, *, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 8).double(), nn.BatchNorm1d(8, momentum=0.5).double()
        self.drop, self.last = nn.Dropout(dropout), nn.Linear(8, 3).double()
        self.most, self.where, self.tried = most, where, []  # type: int, str, list[int]
        self.norm.eval()

    def forward(self, x: Any) -> dict[str, Any]:
        hidden = _Needs.apply(self.norm(self.first(x)), self.most, self.where, self.tried)
        logits = self.last(self.drop(torch.tanh(hidden)))
        return {"logits": logits, "loss": logits.square().mean(), "name": "small"}


def _gradients(model: nn.Module, called: Any, x: Any) -> list[Any]:
    model.zero_grad()
    found = called(x)
    (found["logits"].exp().mean() + found["loss"]).backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("most", [1, 3, 6])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_pass_that_does_not_fit_has_the_same_gradient(where: str, most: int) -> None:
    x = torch.randn(11, 4, dtype=torch.float64, requires_grad=True)
    whole, model, memory = Small(99, where), Small(most, where), MemoryLimit()
    before = _gradients(whole, whole, x)
    input_before, x.grad = x.grad, None
    after = _gradients(model, Guarded(model, memory), x)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)
    torch.testing.assert_close(input_before, x.grad, rtol=0, atol=1e-12)
    assert memory.untold is not None
    assert memory.untold <= max(most, 1) < 2 * memory.untold + 2
    # a step is shared by it only once all replicas know
    assert memory.atomic is None


def test_random_numbers_of_a_piece_come_again() -> None:
    """Where the forward pass was divided, the backward pass sees the very masks that made its outputs."""
    x = torch.randn(8, 4, dtype=torch.float64)
    model = Small(4, "forward", dropout=0.5)
    torch.manual_seed(7)
    ours = _gradients(model, Guarded(model, MemoryLimit()), x)
    state = torch.get_rng_state()
    torch.manual_seed(7)
    model.zero_grad()
    parts = [model(x[:4]), model(x[4:])]
    logits = torch.cat([part["logits"] for part in parts])
    (logits.exp().mean() + (parts[0]["loss"] + parts[1]["loss"]) / 2).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], ours, rtol=0, atol=1e-12)
    assert torch.equal(state, torch.get_rng_state())


def test_buffers_are_counted_once() -> None:
    x = torch.randn(8, 4, dtype=torch.float64)
    whole, model = Small(99, "backward"), Small(4, "backward")
    for each, called in ((whole, whole), (model, Guarded(model, MemoryLimit()))):
        each.norm.train()
        _gradients(each, called, x)
    assert torch.equal(whole.norm.running_mean, model.norm.running_mean)
    assert int(model.norm.num_batches_tracked) == 1


def test_what_has_fit_a_few_times_runs_without_a_guard() -> None:
    model, memory = Small(99, "backward"), MemoryLimit()
    guarded = Guarded(model, memory)
    small, large = torch.randn(4, 4, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    kinds = []
    for x in (small, small, small, small, large, small, large, large, large, small):
        kinds.append("_Node" in str(guarded(x)["logits"].grad_fn))
        _gradients(model, guarded, x)
    assert kinds == [True] * 3 + [False] + [True] * 4 + [False] * 2


def test_one_example_that_does_not_fit_is_the_end() -> None:
    model = Small(0, "backward")
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        _gradients(model, Guarded(model, MemoryLimit()), torch.randn(4, 4, dtype=torch.float64))


def test_outputs_that_cannot_be_joined_are_the_end() -> None:
    class Turned(Small):
        def forward(self, x: Any) -> Any:
            return super().forward(x)["logits"].T

    model = Turned(2, "forward")
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        Guarded(model, MemoryLimit())(torch.randn(4, 4, dtype=torch.float64))


def test_an_output_may_be_changed_in_place() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    found = []
    for wrap in (lambda model: model, lambda model: Guarded(model, MemoryLimit())):
        model = Small(99, "backward")
        logits = wrap(model)(x)["logits"]
        logits += 1
        logits.square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_autocast_is_the_same_when_a_piece_is_made_again() -> None:
    class Seen(nn.Module):
        def __init__(self, most: int) -> None:
            super().__init__()
            self.small = Small(most, "backward").float()
            self.kinds: set[Any] = set()

        def forward(self, x: Any) -> Any:
            found = self.small(x)
            self.kinds.add(found["logits"].dtype)
            return found

    model = Seen(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = Guarded(model, MemoryLimit())(torch.randn(8, 4))
    found["loss"].float().backward()
    assert model.kinds == {torch.bfloat16}


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
    # 16 and 8 were tried once, in the first step, and never again
    assert [size for size in small.tried if size > 5] == [16, 8, 8]
    assert list(dict.fromkeys(entry.atomic for entry in job.history)) == [16, 4]
    # after a restart the limit is known
    again, job = run(5, tmp_path)
    assert again.tried == []
    assert job._loop.memory.atomic == 4
