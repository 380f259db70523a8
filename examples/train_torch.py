"""A plain PyTorch script with five lines of coadapt (marked): elastic, adaptive, and the same training at the reference batch.

python examples/train_torch.py
torchrun --nproc-per-node 2 examples/train_torch.py
coadapt plan --profile "python examples/train_torch.py --bs {batch_size} --epochs {epochs}" --target "val_acc>=0.7" --batch 32..512 --gpus cpu:1 --reference-epochs 10
coadapt test-resize --tolerance 1e-3 -- python examples/train_torch.py --epochs 2
"""

from __future__ import annotations

import argparse
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coadapt.torch as coadapt  # 1

logging.basicConfig(level=logging.INFO, format="%(message)s")
arguments = argparse.ArgumentParser()
arguments.add_argument("--epochs", type=int, default=10)
arguments.add_argument("--bs", type=int, default=32)
given = arguments.parse_args()

torch.manual_seed(0)
x = torch.randn(5000, 32)
y = (x @ torch.randn(32, 10) + 2 * torch.randn(5000, 10)).argmax(1)
train, held_out = TensorDataset(x[:4000], y[:4000]), TensorDataset(x[4000:], y[4000:])
model: nn.Module = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)

job = coadapt.init()  # 2
model, optimizer, schedule = job.prepare(model, optimizer, schedule)  # 3
loader = job.loader(train, batch_size=given.bs, max_batch_size=1024, per_gpu=(8, 512))  # 4

for epoch in job.epochs(given.epochs):  # 5
    model.train()
    for features, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
    schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in DataLoader(held_out, batch_size=256))
    found = job.report(val_acc=(right, len(held_out)), loss=loss)
    if job.rank == 0:
        print(
            f"epoch {epoch + 1}: accuracy {found['val_acc']:.3f}, loss {found['loss']:.3f}, batch {job.batch_size}"
        )
