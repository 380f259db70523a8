"""Counts the threads of the process group that are left when the interpreter ends: any of them may abort the process."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coadapt import torch as coadapt


def group_threads() -> int:
    """Worker threads of gloo in this process."""
    names = (file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm"))
    return sum(name == "pt_gloo_runloop" for name in names)


# registered before coadapt.init(), so it runs after coadapt's own
atexit.register(lambda: print("left", group_threads(), flush=True))
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
net: Any = nn.Linear(4, 3)
job = coadapt.init(batch="fixed", sync=os.environ["SYNC"])
net, optimizer = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
loader = job.loader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
for _ in job.epochs(1):
    for features, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
print("trained with", group_threads(), flush=True)
