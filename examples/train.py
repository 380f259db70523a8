"""A small network on 32x32 images, elastic and with adaptive batch sizes; ``examples/train.yaml`` is its job file.

coadapt submit examples/train.yaml
coadapt predict examples/train.py:build_model --input 3x32x32 --batch 128 --gpu t4

The images are noise around one pattern per class: nothing is downloaded.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HELD_OUT = 1000


def build_model() -> nn.Module:
    """Three convolutions and a classifier."""
    layers: list[nn.Module] = []
    for inner, outer in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 10))


def images(count: int, patterns: torch.Tensor) -> TensorDataset:
    """Images and their classes."""
    labels = torch.randint(len(patterns), (count,))
    return TensorDataset(patterns[labels] + 4 * torch.randn(count, 3, 32, 32), labels)


def main() -> None:
    """Train, and report the accuracy after each epoch."""
    from coadapt import torch as coadapt

    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bs", type=int, default=128)
    arguments.add_argument("--epochs", type=int, default=90)
    arguments.add_argument("--data-size", type=int, default=50000)
    given = arguments.parse_args()

    torch.manual_seed(0)
    patterns = nn.functional.interpolate(torch.randn(10, 3, 4, 4), size=(32, 32))
    train, held_out = images(given.data_size, patterns), images(HELD_OUT, patterns)
    plain = build_model()
    job = coadapt.init()
    model, optimizer = job.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9))
    loader = job.loader(train, batch_size=given.bs, max_batch_size=4096, per_gpu=(32, 1024))
    for epoch in job.epochs(given.epochs):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(job.device)), labels.to(job.device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(a.to(job.device)).argmax(1).cpu() == b).sum())
                for a, b in DataLoader(held_out, batch_size=500)
            )
        found = job.report(val_acc=(right, HELD_OUT), loss=loss)
        if job.rank == 0:
            print(f"epoch {epoch + 1}   batch {job.batch_size}   val_acc {found['val_acc']:.3f}", flush=True)


if __name__ == "__main__":
    main()
