"""One replica of test_torch_sync: takes every architecture through the same steps and says what came of it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coadapt.torch import sync
from coadapt.torch.elastic.process_group import Group, here

STEPS = 6


def a_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def an_optimizer(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    first, second = model[0].parameters(), model[2].parameters()  # type: ignore[index]
    groups = [{"params": list(first), "lr": 0.1}, {"params": list(second), "lr": 0.05, "weight_decay": 0.01}]
    return (
        torch.optim.SGD(groups, lr=0.1, momentum=0.9) if kind == "sgd" else torch.optim.AdamW(groups, lr=0.01)
    )


def train(group: Group, name: str, kind: str) -> dict[str, Any]:
    """A few steps on shares of unequal size, and a checkpoint in between."""
    model = a_model()
    # a frozen parameter must stay as it is, weight decay or not
    model[2].bias.requires_grad_(False)  # type: ignore[index, union-attr]
    optimizer = an_optimizer(model, kind)
    parameters = list(model.parameters())
    chosen = sync.make(name, {}, group.place.replicas)
    wrapped = chosen.wrap(model)
    chosen.open(group, optimizer)
    torch.manual_seed(7)
    data, wanted = torch.randn(STEPS, 12, 7).double(), torch.randn(STEPS, 12, 3).double()
    bounds = {1: [0, 12], 2: [0, 5, 12], 3: [0, 2, 7, 12]}[group.place.replicas]
    begin, end = bounds[group.place.rank], bounds[group.place.rank + 1]
    for x, y in zip(data, wanted, strict=True):
        optimizer.zero_grad()
        chosen.overlap(False)
        loss = ((wrapped(x[begin:end]) - y[begin:end]) ** 2).sum() / 12
        loss.backward()
        chosen.exchange([p.grad for p in parameters if p.grad is not None])
        chosen.update(optimizer.step)
    dist.barrier() if group.place.replicas > 1 else None
    chosen.pull_state()
    dist.barrier() if group.place.replicas > 1 else None
    moments = [
        float(value.double().sum())
        for p in parameters
        for key, value in sorted(optimizer.state.get(p, {}).items())
        if isinstance(value, torch.Tensor) and value.shape == p.shape
    ]
    chosen.close()
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    with torch.no_grad():
        error = float(((model(data) - wanted) ** 2).mean())
    return {"parameters": flat.tolist(), "moments": moments, "error": error}


def main() -> None:
    torch.set_num_threads(1)
    group = Group(here(), torch.device("cpu"))
    group.open()
    found = {f"{name} {kind}": train(group, name, kind) for name, kind in json.loads(os.environ["TRIED"])}
    group.close()
    print(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
