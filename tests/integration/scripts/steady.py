"""A small training script whose result does not depend on how it is interrupted: float64, fixed batch, no randomness.

One that is to be interrupted must not come to its end before, however long the test is kept waiting: after HOLD_AFTER steps it
waits until there is a file GO; or after SLOW_AFTER steps of the first attempt of a rehearsal each takes SLOW_S more.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from coadapt import torch as coadapt
from coadapt.torch.training.training_loop import TrainingLoop

logging.basicConfig(level=logging.INFO)
torch.set_num_threads(1)
torch.manual_seed(0)
made = torch.Generator().manual_seed(1)
x = torch.randn(203, 6, generator=made, dtype=torch.float64)
y = (x @ torch.randn(6, 3, generator=made, dtype=torch.float64)).argmax(1)
data = torch.utils.data.TensorDataset(x, y)
net: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.9)


def pace(made: int) -> None:
    time.sleep(float(os.environ.get("STEP_S", "0")))  # the length of a step
    if made == int(os.environ.get("HOLD_AFTER", "0")):
        while not Path(os.environ["GO"]).exists():
            time.sleep(0.01)
    rehearsed = Path(os.environ.get("COADAPT_AUDIT", "")).parent.name == "loud"
    slow_after = int(os.environ.get("SLOW_AFTER", "1000000"))
    if rehearsed and os.environ["COADAPT_ATTEMPT"] == "0" and made > slow_after:
        time.sleep(float(os.environ["SLOW_S"]))  # the length of a slow step


if "STOP_AT_END" in os.environ:
    # when all replicas have agreed that there is nothing left to train
    finish = TrainingLoop._finish

    def finish_late(loop: TrainingLoop) -> None:
        signal.raise_signal(signal.SIGTERM)
        finish(loop)

    TrainingLoop._finish = finish_late  # type: ignore[method-assign]

made = 0
job = coadapt.init(
    batch="fixed",
    checkpoint_every_s=float(os.environ.get("EVERY_S", "600")),
    sync=os.environ.get("SYNC", "ring"),
)
net, optimizer, schedule = job.prepare(net, optimizer, schedule)
loader = job.loader(data, batch_size=16, max_batch_size=64, per_gpu=(2, int(os.environ.get("ATOMIC", "16"))))
for _ in job.epochs(int(os.environ.get("EPOCHS", "3"))):
    for features, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(features), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        made += 1
        pace(made)
    if job.rank > 0:
        time.sleep(float(os.environ.get("LATE_S", "0")))  # the others must wait for our numbers
    found = job.report(loss=loss, rank=job.rank)
    if "MEANS" in os.environ:
        with Path(os.environ["MEANS"]).open("a") as means:
            means.write(f"{job.replicas} {found['rank']}\n")
if job.rank == 0:
    torch.save([p.detach() for p in net.parameters()], os.environ["RESULT"])
