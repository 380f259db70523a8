"""Trains the networks that the package ships: ``python -m benchmarks.train_network --data DIR [--kind KIND]``.

Run by hand, after ``benchmarks.train_layers``, whose split, features and roofline it shares; needs PyTorch, and about
five minutes per kind on one core. Shape after Justus et al. (IEEE Big Data 2018); what it learns is the residual on the
roofline, by Huber's loss, so that a wild measurement counts less. ``published`` is the paper's recipe itself, to compare:
its features, the time as output, squared error of log(1 + ms), dropout, Adam from 0.1 halved every 40 of 300 epochs.
Hyper-parameters beyond the paper's were chosen on the validation part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.published import data_dir
from benchmarks.smoke import either, few, is_set
from benchmarks.train_layers import TARGET, Rows, columns_of, log_errors, read, split
from coadapt.prediction._base import FloatArray
from coadapt.prediction.layers.layer import fit_efficiency
from coadapt.prediction.layers.learned import (
    FeedForward,
    IntArray,
    Learned,
    encode,
    file_name,
    levels_of,
    matrix,
    pack_network,
    to_arrays,
    unpack_network,
)

WIDTHS = (32, 64, 128, 128, 128, 128)
EPOCHS, BATCH, RATE, DECAY, HUBER = 60, 512, 0.004, 1e-4, 0.1
#: The paper's: see the module. Its 300 epochs take 20 minutes of CPU here; the schedule is compressed to fewer.
PAPER_EPOCHS, PAPER_BATCH, PAPER_RATE, PAPER_HALVINGS, PAPER_L2, PAPER_DROPOUT = 60, 128, 0.1, 7, 1e-5, 0.2


def train(kind: str, rows: Rows, *, epochs: int = EPOCHS, seed: int = 0) -> Learned:
    """Efficiency and network from ``rows``; intervals are not known yet (0)."""
    found, all_terms = columns_of(rows)
    efficiency = fit_efficiency(all_terms, rows.seconds)
    target = np.log(
        rows.seconds / (all_terms @ (efficiency.overhead_s, efficiency.compute, efficiency.memory))
    )
    names = tuple(found)
    x = matrix(found, names)
    levels = levels_of(x, names)
    inputs = encode(x, levels)
    centre, scale = standard(inputs)
    body = _hidden(inputs.shape[1], seed)
    network = nn.Sequential(*body, nn.Linear(WIDTHS[-1], 1))
    _fit(network, (inputs - centre) / scale, target, epochs, seed)
    layers = [each for each in network if isinstance(each, nn.Linear)]
    learned = FeedForward(
        names=names,
        levels=levels,
        centre=centre,
        scale=scale,
        low=inputs.min(axis=0),
        high=inputs.max(axis=0),
        weights=tuple(each.weight.detach().numpy().T.astype(float) for each in layers),
        biases=tuple(each.bias.detach().numpy().astype(float) for each in layers),
        bounds=(float(target.min()), float(target.max())),
    )
    flops = found["flops"]
    return Learned(
        efficiency=efficiency,
        # rounded as it will be shipped, so that nothing changes when it is
        regressor=unpack_network(pack_network(learned)),
        gpus=tuple(sorted(set(rows.gpus))),
        interval=(0.0, 0.0),
        unseen_interval=(0.0, 0.0),
        flops_range=(float(flops.min()), float(flops.max())),
    )


def standard(inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of each input, 1 where it does not vary."""
    spread = inputs.std(axis=0)
    return inputs.mean(axis=0), np.where(spread > 1e-9, spread, 1.0)


def _hidden(wide: int, seed: int) -> list[nn.Module]:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for out in WIDTHS:
        linear = nn.Linear(wide, out)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
        wide = out
    return layers


def _fit(network: nn.Module, inputs: FloatArray, target: FloatArray, epochs: int, seed: int) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    steps = max(len(inputs) // BATCH, 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=epochs * steps)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(network(x)[:, 0], y, delta=HUBER)

    _loop(step, optimizer, inputs, target, epochs, BATCH, seed, lambda epoch: None, schedule.step)


def _loop(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: FloatArray,
    target: FloatArray,
    epochs: int,
    batch: int,
    seed: int,
    before_epoch: Callable[[int], None],
    after_step: Callable[[], None],
) -> None:
    torch.set_num_threads(1)
    order = torch.Generator().manual_seed(seed)
    x, y = (torch.tensor(each, dtype=torch.float32) for each in (inputs, target))
    for epoch in range(either(1, epochs)):
        before_epoch(epoch)
        shuffled = torch.randperm(len(x), generator=order)
        for start in range(0, max(len(x) // batch, 1) * batch, batch):
            at = shuffled[start : start + batch]
            optimizer.zero_grad()
            loss(x[at], y[at]).backward()
            optimizer.step()
            after_step()


def published(kind: str, rows: Rows, asked: Rows, *, epochs: int = PAPER_EPOCHS, seed: int = 0) -> FloatArray:
    """Seconds of ``asked`` by the paper's own recipe, learned from ``rows``."""
    given, scored = (_paper_inputs(kind, each) for each in (rows, asked))
    centre, scale = standard(given)
    network = nn.Sequential(
        *_hidden(given.shape[1], seed),
        nn.Dropout(PAPER_DROPOUT),
        nn.Linear(WIDTHS[-1], 1, bias=False),
        nn.ReLU(),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=PAPER_RATE, eps=0.1)
    kernels = [each.weight for each in network if isinstance(each, nn.Linear)][:-1]

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        shrink = sum((weight**2).sum() for weight in kernels) / 2
        return ((torch.log1p(network(x)[:, 0]) - y) ** 2).mean() + PAPER_L2 * shrink

    def halve(epoch: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = PAPER_RATE * 0.5 ** (epoch * (PAPER_HALVINGS + 0.5) // epochs)

    target = np.log1p(1e3 * rows.seconds)
    _loop(loss, optimizer, (given - centre) / scale, target, epochs, PAPER_BATCH, seed, halve, lambda: None)
    network.eval()
    with torch.no_grad():
        found = network(torch.tensor((scored - centre) / scale, dtype=torch.float32))[:, 0].numpy()
    # an output of 0 is possible there; a relative error needs a number
    return np.asarray(np.maximum(found.astype(float), 1e-3) / 1e3, dtype=float)


def _paper_inputs(kind: str, rows: Rows) -> FloatArray:
    """Elements of matrix and kernel, channels, padding, stride, bias, optimizer and activation, the device's figures."""
    found, _ = columns_of(rows)
    names = ["batch", "channels_in", "channels_out", "optimizer", "activation", "bandwidth", "cores", "clock"]
    if kind == "convolution":
        found = {**found, "matrix": found["size"] ** 2, "kernel": found["kernel"] ** 2}
        names += ["matrix", "kernel", "same", "stride", "bias"]
    x = matrix(found, names)
    return encode(x, levels_of(x, names))


def without(kind: str, rows: Rows, learn: IntArray, gpu: str, *, seed: int = 0) -> Learned:
    """A network of the other four GPUs: 10,000 layers of each."""
    gpus = np.array(rows.gpus)
    others = [learn[gpus[learn] == name][:10_000] for name in sorted(set(rows.gpus)) if name != gpu]
    return train(kind, rows.take(np.concatenate(others)), seed=seed)


def with_interval(learned: Learned, held_out: Rows) -> Learned:
    """With the 80% interval of the errors on rows not learned from."""
    low, high = np.quantile(log_errors(learned, held_out), [0.1, 0.9])
    return replace(learned, interval=(float(low), float(high)))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=data_dir() / "layers" if is_set() else None,
        required=not is_set(),
        help="folder with convolution.csv.gz, dense.csv.gz",
    )
    parser.add_argument("--kind", action="append", choices=("convolution", "dense"))
    given = parser.parse_args()
    for kind in few(given.kind or ("convolution", "dense")):
        rows = read(given.data, kind)
        learn, choose, _ = split(len(rows.layers))
        held_out = rows.take(choose)
        learned = with_interval(train(kind, rows.take(learn)), held_out)
        share = np.abs(np.expm1(-log_errors(learned, held_out))).mean()
        print(f"{kind}: {100 * share:.2f}% MAPE on the validation part", flush=True)
        unseen = []
        for gpu in learned.gpus:
            some = held_out.take(held_out.on(gpu))
            unseen.append(log_errors(without(kind, rows, learn, gpu), some, unseen=True))
            share = np.abs(np.expm1(-unseen[-1])).mean()
            factor = np.exp(np.median(unseen[-1]))
            print(f"  without {gpu}: {100 * share:.1f}%, median factor {factor:.2f}", flush=True)
        # devices are the sample here, not layers: the widest of a handful, symmetric
        wide = float(max(np.quantile(np.abs(each), 0.8) for each in unseen))
        path = TARGET / file_name(kind, "network")
        arrays: dict[str, Any] = to_arrays(replace(learned, unseen_interval=(-wide, wide)))
        if either(True, False):
            continue
        np.savez_compressed(path, **arrays)
        print(f"  {path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
