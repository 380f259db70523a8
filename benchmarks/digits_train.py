"""A small network on scikit-learn's digits, in numpy, with one or two processes: a training script as a user has one.

python benchmarks/digits_train.py --bs 64 --epochs 10 --workers 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

HIDDEN = 256


def gradients(weights: list[Any], x: Any, y: Any) -> list[Any]:
    """Of the summed cross-entropy."""
    w1, b1, w2, b2, w3, b3 = weights
    h1 = np.maximum(x @ w1 + b1, 0)
    h2 = np.maximum(h1 @ w2 + b2, 0)
    z = h2 @ w3 + b3
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    d2 = (p @ w3.T) * (h2 > 0)
    d1 = (d2 @ w2.T) * (h1 > 0)
    return [x.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.T @ p, p.sum(0)]


def accuracy(weights: list[Any], x: Any, y: Any) -> float:
    """Share of right answers."""
    w1, b1, w2, b2, w3, b3 = weights
    z = np.maximum(np.maximum(x @ w1 + b1, 0) @ w2 + b2, 0) @ w3 + b3
    return float((z.argmax(axis=1) == y).mean())


def helper(pipe: Any, x: Any, y: Any) -> None:
    """The second process: gradients of its half of each batch."""
    while True:
        weights, rows = pipe.recv()
        if rows is None:
            return
        pipe.send(gradients(weights, x[rows], y[rows]))


def main() -> None:
    """Trains and reports after each pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    order = np.random.default_rng(7).permutation(len(x))
    held, train = order[:360], order[360:]
    rng = np.random.default_rng(given.seed)
    sizes = ((64, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10))
    weights: list[Any] = []
    for rows, columns in sizes:
        weights.append((rng.normal(size=(rows, columns)) * np.sqrt(2 / rows)).astype(np.float32))
        weights.append(np.zeros(columns, dtype=np.float32))
    pipe = None
    if given.workers > 1:
        pipe, other = multiprocessing.Pipe()
        multiprocessing.Process(target=helper, args=(other, x, y), daemon=True).start()
    for epoch in range(1, given.epochs + 1):
        began = time.perf_counter()
        shuffled = rng.permutation(train)
        for start in range(0, len(shuffled), given.bs):
            rows = shuffled[start : start + given.bs]
            half = len(rows) // given.workers
            if pipe is not None:
                pipe.send((weights, rows[half:]))
            mine = gradients(
                weights, x[rows[:half]] if pipe else x[rows], y[rows[:half]] if pipe else y[rows]
            )
            if pipe is not None:
                mine = [a + b for a, b in zip(mine, pipe.recv(), strict=True)]
            weights = [w - given.lr / len(rows) * g for w, g in zip(weights, mine, strict=True)]
        took = time.perf_counter() - began
        report = {"epoch": epoch, "epoch_s": took, "val_acc": accuracy(weights, x[held], y[held])}
        print("COADAPT " + json.dumps(report), flush=True)
    if pipe is not None:
        pipe.send((None, None))


if __name__ == "__main__":
    main()
