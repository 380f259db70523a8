"""A replica that trains a small network with ``coadapt.torch`` and writes down its life as ``chaos_replica`` does.

python chaos_torch.py DIR GPUS EPOCHS
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from torch import nn
from torch.utils.data import TensorDataset

from chaos_replica import Life
from coadapt import torch as coadapt

life = Life(Path(sys.argv[1]), int(sys.argv[2]))


def beat() -> None:
    while True:
        time.sleep(0.05)
        life.note("beat")


threading.Thread(target=beat, daemon=True).start()


def main() -> None:
    """Trains; a step is slowed so that the training outlasts a few kills."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model: nn.Module = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job = coadapt.init()
    model, optimizer = job.prepare(model, optimizer)
    loader = job.loader(data, batch_size=32, max_batch_size=128, per_gpu=(8, 64))
    for _ in job.epochs(int(sys.argv[3])):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.05)


if __name__ == "__main__":
    main()
    life.note("end", code=0, pid=os.getpid())
