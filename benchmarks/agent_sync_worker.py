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

from coadapt.torch import sync
from coadapt.torch.group import Group
from coadapt.torch.place import here


def exchange_s(group: Group, name: str, numbers: int, repeats: int) -> float:
    """Median seconds until a gradient of so many numbers is summed everywhere."""
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


def main() -> None:
    """Does what the environment asks, and prints it once."""
    torch.set_num_threads(1)
    group = Group(here(), torch.device("cpu"))
    group.open()
    found: list[Any] = []
    for what, *arguments in json.loads(os.environ["ASKED"]):
        found.append({"exchange": exchange_s, "step": step_s}[what](group, *arguments))
    means = group.sum(found)
    if group.place.first:
        print(json.dumps([total / group.place.replicas for total in means]))
    group.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
