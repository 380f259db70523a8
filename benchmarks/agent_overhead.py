"""What our lines cost: steps of plain DDP and of ours in turns, in the same processes, by CPU time.

A run is ``steps`` steps of each, in bursts that alternate, so that a slow moment of the machine hits both, and so long that
samples of gradient statistics are in it in their usual share; its ratio is one figure, and the median over runs is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks import agent_tasks
from coadapt import torch as coadapt

CE = nn.functional.cross_entropy
MODELS = {
    "cnn": lambda: agent_tasks.cnn(8),
    "mlp100k": lambda: agent_tasks.wide_mlp(64, 270),
    "mlp2m": lambda: agent_tasks.wide_mlp(64, 1360),
}


def plainly(make: Any, data: TensorDataset, batch: int, replicas: int) -> Iterator[None]:
    """A plain script; DDP where there are several processes."""
    model: nn.Module = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler: Any = None
    if replicas > 1:
        model, sampler = nn.parallel.DistributedDataParallel(model), DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch // replicas, sampler=sampler, shuffle=sampler is None)
    for epoch in range(10**6):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
            yield


def by_us(job: Any, make: Any, data: TensorDataset, batch: int) -> Iterator[None]:
    """The same script with our lines."""
    model = make()
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loader = job.loader(data, batch_size=batch, max_batch_size=batch, per_gpu=(1, batch))
    for _ in job.epochs(10**6):
        for features, labels in loader:
            optimizer.zero_grad()
            CE(model(features), labels).backward()
            optimizer.step()
            yield


def overhead(options: dict[str, Any]) -> dict[str, Any]:
    """CPU and wall seconds per step of every run, ours and plain; the first run warms up."""
    replicas = int(os.environ.get("WORLD_SIZE", "1"))
    batch, steps, burst = options["batch"], options["steps"], options["burst"]
    torch.manual_seed(0)  # replicas of one job have the same data
    data = TensorDataset(torch.randn(8192, 1, 8, 8), torch.randint(0, 10, (8192,)))
    make = MODELS[options["model"]]
    job = coadapt.init(batch="fixed")
    ways = {"plain": plainly(make, data, batch, replicas), "ours": by_us(job, make, data, batch)}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options["runs"] + 1):
        spent = {name: [0.0, 0.0] for name in ways}
        for number in range(steps // burst):
            for name in ways if number % 2 else reversed(list(ways)):
                began, clock = time.process_time(), time.perf_counter()
                for _ in range(burst):
                    next(ways[name])
                spent[name][0] += time.process_time() - began
                spent[name][1] += time.perf_counter() - clock
        for name in ways:
            cpu[name].append(spent[name][0] / steps)
            wall[name].append(spent[name][1] / steps)
    return {
        "cpu_s": {name: values[1:] for name, values in cpu.items()},
        "wall_s": {name: values[1:] for name, values in wall.items()},
        "interval": job._training.sampling.interval,
        "load": os.getloadavg()[0],
    }
