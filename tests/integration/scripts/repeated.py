"""Trains with a few larger steps on one replica, or repeats the schedule of SAME on however many; prints what it came to."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from coadapt import torch as coadapt
from coadapt.torch.batches import Chosen, Situation
from coadapt.torch.training import decision_history

torch.set_num_threads(1)
torch.manual_seed(0)
made = torch.Generator().manual_seed(5)
x = torch.randn(330, 4, generator=made, dtype=torch.float64)
y = (x[:, 0] + 0.5 * x[:, 1] ** 2 > 0).long()


class Larger:
    """Batches of 20, and of 40 in two passes once in five steps."""

    def choose(self, now: Situation) -> Chosen:
        return Chosen(20, 20, why="given", twice=5)


net: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
job = coadapt.init(batch=Larger(), rate="sqrt", same_schedule=os.environ.get("SAME"))
net, optimizer = job.prepare(net, optimizer)
loader = job.loader(torch.utils.data.TensorDataset(x, y), 8, 64, (1, 64))
for _ in job.epochs(4):
    for features, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
if "SAVED" in os.environ:
    decision_history.save(Path(os.environ["SAVED"]), job.history)
total = sum(float(p.detach().square().sum()) for p in net.parameters())
print(f"steps {job._training.ledger.step} parameters {total:.12f}")
