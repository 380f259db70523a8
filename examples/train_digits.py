r"""A small network on scikit-learn's digits, in numpy, with one or two processes: a quick training script to try `plan` with.

    python examples/train_digits.py --bs 64 --epochs 10
    coadapt plan --profile "python examples/train_digits.py --bs {batch_size} --workers {workers} --epochs {epochs} --lr {lr} --seed {seed}" \
        --target "val_acc>=0.95" --deadline 2m --gpus cpu:1..2 --batch 32..256 --lr 0.05 --lr-rule sqrt \
        --reference-epochs 20 --run-epochs 3 --max-runs 5

It works with `plan` because of its options and the line it prints after each epoch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
HIDDEN, HELD_OUT = 1024, 360


def forward(weights: list[Floats], x: Floats) -> tuple[Floats, Floats, Floats]:
    """Both hidden layers and the logits."""
    w1, b1, w2, b2, w3, b3 = weights
    h1 = np.maximum(x @ w1 + b1, 0)
    h2 = np.maximum(h1 @ w2 + b2, 0)
    return h1, h2, h2 @ w3 + b3


def gradients(weights: list[Floats], x: Floats, y: Ints) -> list[Floats]:
    """Of the summed cross-entropy."""
    h1, h2, z = forward(weights, x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    d2 = (p @ weights[4].T) * (h2 > 0)
    d1 = (d2 @ weights[2].T) * (h1 > 0)
    return [x.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.T @ p, p.sum(0)]


def helper(pipe: Connection, x: Floats, y: Ints) -> None:
    """The second process: gradients of its half of each batch."""
    while True:
        weights, rows = pipe.recv()
        if rows is None:
            return
        pipe.send(gradients(weights, x[rows], y[rows]))


def initial(rng: np.random.Generator) -> list[Floats]:
    """Weights and biases of three layers."""
    weights: list[Floats] = []
    for rows, columns in ((64, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10)):
        weights.append((rng.normal(size=(rows, columns)) * np.sqrt(2 / rows)).astype(np.float32))
        weights.append(np.zeros(columns, dtype=np.float32))
    return weights


def main() -> None:
    """Trains and reports after each pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--bs", type=int, default=64)
    parser.add_argument("-e", "--epochs", type=int, default=5)
    parser.add_argument("-w", "--workers", type=int, default=1, choices=(1, 2))
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    order = np.random.default_rng(7).permutation(len(x))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    rng = np.random.default_rng(given.seed)
    weights = initial(rng)
    pipe = None
    if given.workers > 1:
        pipe, other = multiprocessing.Pipe()
        multiprocessing.Process(target=helper, args=(other, x, y), daemon=True).start()
    for epoch in range(1, given.epochs + 1):
        began = time.perf_counter()
        shuffled = rng.permutation(train)
        for start in range(0, len(shuffled), given.bs):
            rows = shuffled[start : start + given.bs]
            mine = rows[: len(rows) // 2] if pipe else rows
            if pipe is not None:
                pipe.send((weights, rows[len(mine) :]))
            total = gradients(weights, x[mine], y[mine])
            if pipe is not None:
                total = [a + b for a, b in zip(total, pipe.recv(), strict=True)]
            weights = [w - given.lr / len(rows) * g for w, g in zip(weights, total, strict=True)]
        took = time.perf_counter() - began
        right = forward(weights, x[held])[2].argmax(axis=1) == y[held]
        report = {"epoch": epoch, "epoch_s": took, "val_acc": float(right.mean())}
        print("COADAPT " + json.dumps(report), flush=True)
    if pipe is not None:
        pipe.send((None, None))


if __name__ == "__main__":
    main()
