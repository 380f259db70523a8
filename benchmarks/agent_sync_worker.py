"""One replica of ``benchmarks.agent_sync``: seconds per exchange, per step, or the accuracy it comes to."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks import agent_tasks
from coadapt.torch import sync
from coadapt.torch.elastic.process_group import Group, here


def exchange_s(group: Group, name: str, numbers: int, repeats: int) -> float:
    """Median seconds until a gradient of this size is summed on every replica."""
    chosen = sync.make(name, {}, group.place.replicas)
    chosen.open(group, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    gradient, took = torch.ones(numbers), []
    for _ in range(repeats + 2):
        dist.barrier()
        began = time.perf_counter()
        chosen.exchange([gradient])
        took.append(time.perf_counter() - began)
    chosen.close()
    return statistics.median(took[2:])


def step_s(group: Group, name: str, batch: int, steps: int) -> float:
    """Median seconds of a worker's step: its share of a batch through a small network, and the exchange."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    chosen = sync.make(name, {}, group.place.replicas)
    chosen.open(group, optimizer)
    x, took = torch.randn(max(batch // group.place.replicas, 1), 256), []
    for _ in range(steps + 3):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        chosen.exchange([p.grad for p in model.parameters() if p.grad is not None])
        chosen.update(optimizer.step)
        took.append(time.perf_counter() - began)
    if group.place.replicas > 1:
        dist.barrier()
    chosen.close()
    return statistics.median(took[3:])


def accuracy(group: Group, name: str, epochs: int) -> float:
    """Accuracy of the first replica on held-out digits after some passes over this worker's half of the rest."""
    x, y, test_x, test_y = agent_tasks.fold(*agent_tasks.digits(), 0)
    torch.manual_seed(0)
    model = agent_tasks.mlp(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    chosen = sync.make(name, {}, group.place.replicas)
    chosen.open(group, optimizer)
    rank, replicas = group.place.rank, group.place.replicas
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        # whole steps only: every worker makes as many as the others
        for begin in range(0, len(x) - 32 * replicas + 1, 32 * replicas):
            mine = order[begin + 32 * rank : begin + 32 * (rank + 1)]
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(x[mine]), y[mine]) / replicas).backward()
            chosen.exchange([p.grad for p in model.parameters() if p.grad is not None])
            chosen.update(optimizer.step)
    if replicas > 1:
        dist.barrier()
    chosen.pull_state()
    with torch.no_grad():
        right = float((model(test_x).argmax(1) == test_y).double().mean())
    chosen.close()
    # the mean over replicas is reported: all have the value of the first
    return float(group.from_first(right))


def main() -> None:
    """Does what the environment asks, and prints it once."""
    torch.set_num_threads(1)
    group = Group(here(), torch.device("cpu"))
    group.open()
    found: list[Any] = []
    asked: dict[str, Any] = {"exchange": exchange_s, "step": step_s, "accuracy": accuracy}
    for what, *arguments in json.loads(os.environ["ASKED"]):
        found.append(asked[what](group, *arguments))
    means = group.sum(found)
    if group.place.first:
        print(json.dumps([total / group.place.replicas for total in means]))
    group.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
