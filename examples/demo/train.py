"""A job of the demo: a small network on scikit-learn's handwritten digits, made elastic and adaptive by ``coadapt.torch``.

python examples/demo/train.py --model cnn --epochs 5
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from coadapt import torch as coadapt

MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    "wide": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    ),
}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 x 8, read from the package's file: importing scikit-learn takes longer than an epoch here."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        sys.exit("the demo's data are in scikit-learn: pip install scikit-learn")
    table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    order = np.random.default_rng(0).permutation(len(table))
    images = torch.tensor(table[order, :64] / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images, torch.tensor(table[order, 64], dtype=torch.long)


def main() -> None:
    """Trains, and reports the accuracy on held-out digits after each epoch of work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--max-batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.05)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = digits()
    train = TensorDataset(images[:1437], labels[:1437])
    model: nn.Module = MODELS[given.model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)

    job = coadapt.init()
    model, optimizer = job.prepare(model, optimizer)
    loader = job.loader(
        train, batch_size=given.batch, max_batch_size=max(given.max_batch, given.batch), per_gpu=(8, 256)
    )
    for epoch in job.epochs(given.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            right = int((model(images[1437:]).argmax(1) == labels[1437:]).sum())
        found = job.report(val_acc=(right, len(labels) - 1437))
        if job.rank == 0:
            print(f"epoch {epoch + 1}: accuracy {found['val_acc']:.3f}, batch {job.batch_size}", flush=True)


if __name__ == "__main__":
    main()
