"""Two epochs, each with a validation that lasts until there is a file GO: longer than anybody waits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

from coadapt import torch as coadapt

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(40, 4, dtype=torch.float64)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
net: nn.Module = nn.Linear(4, 2).double()
job = coadapt.init(batch="fixed")
net, optimizer = job.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
loader = job.loader(data, batch_size=8)
if os.environ.get("FAIL_ON") == str(job.rank):
    raise ValueError("this replica has no data")
for _ in job.epochs(2):
    for features, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.step()
    Path(os.environ["OUT"], f"validating{job.rank}").touch()
    while not Path(os.environ["OUT"], "go").exists():
        time.sleep(0.01)
