"""A plain PyTorch script with five lines of coadapt (marked), which make it elastic and its batch size adaptive.

python examples/train_torch.py                     prints decisions, their reasons, and the time of each epoch
python examples/train_torch.py --batch fixed       fixed batch size, for comparison
torchrun --nproc-per-node 2 examples/train_torch.py
coadapt plan --profile "python examples/train_torch.py --bs {batch_size} --epochs {epochs}" --target "val_acc>=0.43" --batch 32..512 --gpus cpu:1 --reference-epochs 10
coadapt test-resize --tolerance 1e-3 -- python examples/train_torch.py --epochs 2
"""

from __future__ import annotations

import argparse
import logging
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coadapt import torch as coadapt

logging.basicConfig(level=logging.INFO, format="          %(message)s")
arguments = argparse.ArgumentParser()
arguments.add_argument("--epochs", type=int, default=10)
arguments.add_argument("--batch", default="adaptive", help="a batch rule: adaptive, fixed, ...")
arguments.add_argument("--bs", type=int, default=32)
given = arguments.parse_args()

torch.manual_seed(0)
x = torch.randn(24000, 64)
y = (x @ torch.randn(64, 10) + 8 * torch.randn(24000, 10)).argmax(1)
train, held_out = TensorDataset(x[:20000], y[:20000]), TensorDataset(x[20000:], y[20000:])
model: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)

job = coadapt.init(batch=given.batch)  # 2
model, optimizer, schedule = job.prepare(model, optimizer, schedule)  # 3
loader = job.loader(train, batch_size=given.bs, max_batch_size=2048, per_gpu=(8, 1024))  # 4

total = 0.0
for epoch in job.epochs(given.epochs):  # 5
    model.train()
    began = time.perf_counter()
    for features, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - began
    total += took
    schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in DataLoader(held_out, batch_size=1024))
    found = job.report(val_acc=(right, len(held_out)), loss=loss)
    if job.rank == 0:
        noise = "" if job.noise_scale is None else f"   noise scale {job.noise_scale:5.0f}"
        print(
            f"epoch {epoch + 1:2d}   {took:5.2f} s   batch {job.batch_size:4d}   "
            f"accuracy {found['val_acc']:.3f}{noise}",
            flush=True,
        )
if job.rank == 0:
    sizes = dict.fromkeys(entry.batch for entry in job.history)
    print(f"\n{total:.1f} s of training with batches of {', '.join(map(str, sizes))}")
    if given.batch != "fixed":
        print("The same work at a batch of 32 throughout: --batch fixed")
