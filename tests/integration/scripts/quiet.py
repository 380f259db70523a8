"""Counts the collective messages of ours in the loop: none in plain steps; DDP's own, made in C++, are not counted here."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coadapt import torch as coadapt

x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
torch.manual_seed(1)
net: Any = nn.Linear(4, 3)
job = coadapt.init(batch="fixed", sample_every=int(os.environ["EVERY"]))
net, optimizer = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
loader = job.loader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
messages = 0


def counted(name: str) -> None:
    original = getattr(dist, name)

    def call(*given: Any, **named: Any) -> Any:
        global messages
        messages += 1
        return original(*given, **named)

    setattr(dist, name, call)


for name in (
    "all_reduce",
    "all_gather",
    "all_gather_object",
    "broadcast",
    "broadcast_object_list",
    "gather_object",
    "barrier",
):
    counted(name)
steps = inside = 0
for _ in job.epochs(2):
    before = messages
    for features, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
        steps += 1
    inside += messages - before
if job.rank == 0:
    print(
        "steps",
        steps,
        "messages",
        inside,
        "samples",
        job._training.noise.samples,
        "checks",
        job._loop.guard.checks,
    )
