"""Trains where one replica's device is too small, in the half of the pass that WHERE names; prints what each came to."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

from coadapt import torch as coadapt

torch.set_num_threads(1)
made = torch.Generator().manual_seed(1)
x = torch.randn(96, 4, generator=made, dtype=torch.float64)
y = torch.randint(0, 3, (96,), generator=made)
where, tried = os.environ["WHERE"], []


class Needs(torch.autograd.Function):
    """Runs out of memory on the replica SMALL where the activations of more than 5 examples are on the device."""

    @staticmethod
    def forward(ctx: Any, values: Any) -> Any:
        ctx.in_host_memory = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        _check("forward", len(values), ctx.in_host_memory)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _check("backward", len(grad), ctx.in_host_memory)
        return grad.clone()


def _check(half: str, count: int, in_host_memory: bool) -> None:
    if half == where and os.environ["RANK"] == os.environ["SMALL"]:
        tried.append(count)
        if count > 5 and not in_host_memory:
            raise torch.OutOfMemoryError("no room")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8).double(), nn.Linear(8, 3).double()

    def forward(self, values: Any) -> Any:
        return self.last(torch.tanh(Needs.apply(self.first(values))))


net: nn.Module = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
job = coadapt.init(batch="fixed", sync=os.environ.get("SYNC", "ring"), sample_every=4)
net, optimizer = job.prepare(net, optimizer)
loader = job.loader(torch.utils.data.TensorDataset(x, y), batch_size=24, max_batch_size=48, per_gpu=(1, 24))
for _ in job.epochs(20):
    for features, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
        if where != "nowhere" and job.history[-1].atomic > 3:
            time.sleep(0.1)  # the pace of these steps: the notice of the limit takes effect at one of them
total = sum(float(p.detach().square().sum()) for p in net.parameters())
too_many = sum(count > 5 for count in tried)
print(f"parameters {total:.12f} atomic {job.history[-1].atomic} too many {too_many}")
