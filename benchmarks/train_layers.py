"""Trains the layer predictor that the package ships: ``python -m benchmarks.train_layers --data DIR``.

Run by hand; takes about five minutes on one core and needs the extra ``layers``. The random split is fixed by its
seed: 80% are learned from, 10% serve all choices and the intervals, the last 10% are only scored by
``benchmarks.prediction_layers``. What is shipped was learned from the 80%, so that what is scored is what is shipped.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published import data_dir
from benchmarks.smoke import either, is_set
from coadapt.model.hardware import find_gpu
from coadapt.prediction._base import FloatArray
from coadapt.prediction.layers.layer import Layer, fit_efficiency, step_work, terms
from coadapt.prediction.layers.learned import IntArray, Learned, Trees, features, matrix, to_arrays

TARGET = Path(__file__).resolve().parents[1] / "src" / "coadapt" / "prediction" / "layers" / "data"
#: Trees and learning rate, by kind; leaves are 63. Chosen on the validation part.
ROUNDS = {"convolution": (450, 0.1), "dense": (500, 0.09)}
#: Relative noise that every measurement has besides its own spread.
_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured layers of one kind."""

    layers: list[Layer]
    optimizers: list[str]
    gpus: list[str]
    seconds: FloatArray
    #: Relative standard deviation of the repeats.
    spread: FloatArray

    def take(self, at: IntArray) -> Rows:
        """Some of them."""
        return Rows(
            [self.layers[i] for i in at],
            [self.optimizers[i] for i in at],
            [self.gpus[i] for i in at],
            self.seconds[at],
            self.spread[at],
        )

    def on(self, gpu: str) -> IntArray:
        """Where the rows of a GPU are."""
        return np.flatnonzero(np.array(self.gpus) == gpu)


@cache
def read(folder: Path, kind: str) -> Rows:
    """All rows of a kind."""
    with gzip.open(folder / f"{kind}.csv.gz", "rt") as stream:
        rows = list(csv.DictReader(stream))
    # some of every GPU: files are sorted by it
    rows = either(rows[:: len(rows) // 300], rows)
    make = _convolution if kind == "convolution" else _dense
    seconds = np.array([float(row["time_ms"]) for row in rows]) / 1e3
    spread = np.array([float(row["time_std_ms"]) for row in rows]) / 1e3 / seconds
    layers = [make(row) for row in rows]
    gpus = [find_gpu(row["gpu_name"]).name for row in rows]
    return Rows(layers, [row["optimizer"] for row in rows], gpus, seconds, spread)


def _convolution(row: dict[str, str]) -> Layer:
    batch, size, kernel, stride = (int(row[n]) for n in ("batchsize", "matsize", "kernelsize", "strides"))
    channels_in, channels_out = int(row["channels_in"]), int(row["channels_out"])
    same = row["padding"] == "same"
    out = -(-size // stride) if same else max(size - kernel, 0) // stride + 1
    product = batch * out * out, channels_out, channels_in * kernel * kernel
    return Layer(
        name="measured",
        kind="convolution",
        batch=batch,
        flops=2.0 * product[0] * product[1] * product[2],
        input_bytes=4.0 * batch * size * size * channels_in,
        output_bytes=4.0 * product[0] * channels_out,
        parameters=product[1] * product[2],
        rows=product[0],
        columns=product[1],
        depth=product[2],
        size=size,
        out_size=out,
        kernel=kernel,
        stride=stride,
        channels_in=channels_in,
        channels_out=channels_out,
        same_padding=same,
        bias=row["use_bias"] == "1",
        activation=row["activation"],
    )


def _dense(row: dict[str, str]) -> Layer:
    batch, wide, out = (int(row[name]) for name in ("batchsize", "dim_input", "dim_output"))
    return Layer(
        name="measured",
        kind="dense",
        batch=batch,
        flops=2.0 * batch * wide * out,
        input_bytes=4.0 * batch * wide,
        output_bytes=4.0 * batch * out,
        parameters=wide * out,
        rows=batch,
        columns=out,
        depth=wide,
        channels_in=wide,
        channels_out=out,
        activation=row["activation"],
    )


def split(count: int, seed: int = 0) -> tuple[IntArray, IntArray, IntArray]:
    """Rows to learn from (80%), to choose by (10%) and to score (10%)."""
    order = np.random.default_rng(seed).permutation(count)
    first, second = int(0.8 * count), int(0.9 * count)
    return order[:first], order[first:second], order[second:]


def columns_of(rows: Rows) -> tuple[dict[str, FloatArray], FloatArray]:
    """Features and roofline terms, each row on its own GPU."""
    found: dict[str, FloatArray] = {}
    all_terms = np.zeros((len(rows.layers), 3))
    for gpu in dict.fromkeys(rows.gpus):
        at = rows.on(gpu)
        some = rows.take(at)
        device = find_gpu(gpu)
        for name, values in features(some.layers, some.optimizers, device).items():
            found.setdefault(name, np.zeros(len(rows.layers)))[at] = values
        all_terms[at] = terms(step_work(some.layers, some.optimizers), device)
    return found, all_terms


def train(
    kind: str, rows: Rows, *, rounds: int | None = None, rate: float | None = None, seed: int = 0
) -> Learned:
    """Efficiency and trees from ``rows``; intervals are not known yet (0)."""
    found, all_terms = columns_of(rows)
    efficiency = fit_efficiency(all_terms, rows.seconds)
    one = (efficiency.overhead_s, efficiency.compute, efficiency.memory)
    target = np.log(rows.seconds) - np.log(all_terms @ one)
    names = tuple(found)
    flops = found["flops"]
    trees = boost(
        matrix(found, names),
        target,
        rows.spread,
        names,
        either(5, rounds or ROUNDS[kind][0]),
        rate or ROUNDS[kind][1],
        seed,
    )
    return Learned(
        efficiency=efficiency,
        regressor=trees,
        gpus=tuple(sorted(set(rows.gpus))),
        interval=(0.0, 0.0),
        unseen_interval=(0.0, 0.0),
        flops_range=(float(flops.min()), float(flops.max())),
    )


def boost(
    x: FloatArray,
    target: FloatArray,
    spread: FloatArray,
    names: Sequence[str],
    rounds: int,
    rate: float,
    seed: int,
) -> Trees:
    """LightGBM's trees; a noisy measurement counts less."""
    import lightgbm

    weight = 1 / (_NOISE**2 + spread**2)
    options: dict[str, Any] = {
        "objective": "regression",
        "num_leaves": 63,
        "learning_rate": rate,
        "min_data_in_leaf": 10,
        "feature_fraction": 0.6,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 1.0,
        "num_threads": 1,
        "verbosity": -1,
        "seed": seed,
        "max_bin": 250,
    }
    data = lightgbm.Dataset(x, target, weight=weight / weight.mean(), feature_name=list(names))
    return convert(lightgbm.train(options, data, rounds).dump_model(), names)


def convert(dumped: dict[str, Any], names: Sequence[str]) -> Trees:
    """LightGBM's description of a model as our arrays."""
    splits: list[tuple[int, float, int, int]] = []
    leaves: list[float] = []
    starts: list[int] = []
    for tree in dumped["tree_info"]:
        starts.append(len(splits))
        mine: list[tuple[int, float, int, int]] = []
        values: list[float] = []
        _walk(tree["tree_structure"], mine, values)
        splits += mine
        leaves += values
    feature = np.array([each[0] for each in splits], dtype=np.intp)
    # rounded as they will be shipped, so that nothing changes when they are
    cut = np.array([each[1] for each in splits], dtype=np.float32).astype(float)
    thresholds = tuple(np.unique(cut[feature == i]) for i in range(len(names)))
    bins = np.array(
        [np.searchsorted(thresholds[f], c) for f, c in zip(feature, cut, strict=True)], dtype=np.intp
    )
    start = np.array(starts, dtype=np.intp)
    return Trees(
        names=tuple(names),
        thresholds=thresholds,
        feature=feature,
        bin=bins,
        left=np.array([each[2] for each in splits], dtype=np.intp),
        right=np.array([each[3] for each in splits], dtype=np.intp),
        leaf=np.array(leaves, dtype=np.float16).astype(float),
        split_start=start,
        leaf_start=start + np.arange(len(start)),
    )


def _walk(node: dict[str, Any], splits: list[tuple[int, float, int, int]], leaves: list[float]) -> int:
    """Adds a node and all below it; its number as a child: >= 0 a split, else ~leaf."""
    if "leaf_value" in node:
        leaves.append(float(node["leaf_value"]))
        return ~(len(leaves) - 1)
    number = len(splits)
    splits.append((0, 0.0, 0, 0))
    left = _walk(node["left_child"], splits, leaves)
    right = _walk(node["right_child"], splits, leaves)
    splits[number] = (int(node["split_feature"]), float(node["threshold"]), left, right)
    return number


def log_errors(learned: Learned, rows: Rows, *, unseen: bool = False) -> FloatArray:
    """log(true / predicted); ``unseen``: as if the rows' GPU had not been measured."""
    errors = np.zeros(len(rows.layers))
    for gpu in dict.fromkeys(rows.gpus):
        at = rows.on(gpu)
        some = rows.take(at)
        value = learned.log_roofline(some.layers, some.optimizers, find_gpu(gpu))
        if unseen:
            value = value + learned.residuals(some.layers, some.optimizers).mean(axis=1)
        else:
            value = value + learned.residual(some.layers, some.optimizers, find_gpu(gpu))
        errors[at] = np.log(some.seconds) - value
    return errors


def without(kind: str, rows: Rows, learn: IntArray, gpu: str, *, seed: int = 0) -> Learned:
    """A smaller model of the other four GPUs: 10,000 layers of each."""
    gpus = np.array(rows.gpus)
    others = [learn[gpus[learn] == name][:10_000] for name in sorted(set(rows.gpus)) if name != gpu]
    return train(kind, rows.take(np.concatenate(others)), rounds=300, rate=0.1, seed=seed)


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
    folder = parser.parse_args().data
    for kind in ROUNDS:
        rows = read(folder, kind)
        learn, choose, _ = split(len(rows.layers))
        learned = train(kind, rows.take(learn))
        held_out = rows.take(choose)
        errors = log_errors(learned, held_out)
        print(
            f"{kind}: {100 * np.abs(np.expm1(-errors)).mean():.2f}% MAPE on the validation part", flush=True
        )
        unseen = []
        for gpu in learned.gpus:
            some = held_out.take(held_out.on(gpu))
            unseen.append(log_errors(without(kind, rows, learn, gpu), some, unseen=True))
            share = np.abs(np.expm1(-unseen[-1])).mean()
            print(
                f"  without {gpu}: {100 * share:.1f}%, median factor {np.exp(np.median(unseen[-1])):.2f}",
                flush=True,
            )
        # devices are the sample here, not layers: the widest of a handful, symmetric
        wide = float(max(np.quantile(np.abs(each), 0.8) for each in unseen))
        low, high = np.quantile(errors, [0.1, 0.9])
        learned = replace(learned, interval=(float(low), float(high)), unseen_interval=(-wide, wide))
        arrays: dict[str, Any] = to_arrays(learned)
        if either(True, False):
            continue
        np.savez_compressed(TARGET / f"{kind}.npz", **arrays)
        print(f"  {TARGET / kind}.npz: {(TARGET / f'{kind}.npz').stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
