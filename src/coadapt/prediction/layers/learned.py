"""Learned time of dense layers and convolutions: features (Justus et al. 2018), then trees or a network, evaluated by numpy.

    log T = log(o + c F / peak + m Y / bandwidth) + f(features of layer and device)

After Justus et al. (IEEE Big Data 2018), whose network and measurements (250,000 layers, five GPUs, TensorFlow 1,
32-bit, Apache-2.0) this follows. f is either a sum of boosted trees (``Trees``, the default) or a network of the
paper's shape (``FeedForward``). Both are plain arrays: nothing to unpickle, no LightGBM or PyTorch needed.

Where we deviate from the paper: a residual on the roofline, so that a faster device is faster; features that say how well a
kernel fits a device; and for a device that was *not* measured the average of what the measured ones would do relative to
their own rooflines, because neither extrapolates in a device's figures (trees, one of five GPUs left out: 55% error that
way). Errors of both, and of the paper's network as published: ``benchmarks.prediction_layers``.

**Features.** The paper takes the layer's own numbers (batch, sizes, channels, kernel, stride, padding, bias, activation,
optimizer) and the GPU's (peak, bandwidth, cores, clock). We add what decides how well a kernel fits a device: the shape of
the matrix product (rows M = batch x output pixels, columns N, depth K), how full its last tiles and the last wave of
tiles are, and the roofline's terms.

**Trees.** A file holds, for all trees one after the other: per split the feature's number, the number of its threshold
among that feature's thresholds, and two children (>= 0 a split of the same tree, < 0 the leaf ~child); per leaf a value. A
value goes left when it is not above the threshold. Thresholds are few (255 per feature), so every feature is first replaced
by the number of thresholds below it, and a split then compares two small integers.

**Network.** Hidden layers of 32, 64, 128, 128, 128 and 128 rectified units over standardised features of layer and
device, categories one-hot, one output: f instead of the paper's time. A feature beyond the training range is clipped to
it, and so is the output, because a network, unlike trees, extrapolates linearly without bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coadapt.errors import InvariantError
from coadapt.model.hardware import Gpu, find_gpu
from coadapt.prediction._base import FloatArray
from coadapt.prediction.layers.layer import OPTIMIZER_STATE, Efficiency, Kind, Layer, column, step_work, terms

IntArray = npt.NDArray[np.intp]
#: Rows times trees walked together: enough to be fast, few enough to stay in the cache's neighbourhood.
_AT_ONCE = 400_000


@dataclass(frozen=True, slots=True)
class Trees:
    """The sum of many trees."""

    names: tuple[str, ...]
    #: Thresholds of each feature, ascending.
    thresholds: tuple[FloatArray, ...]
    feature: IntArray
    bin: IntArray
    left: IntArray
    right: IntArray
    leaf: FloatArray
    #: Where each tree's splits and leaves begin.
    split_start: IntArray
    leaf_start: IntArray

    def predict(self, x: FloatArray) -> FloatArray:
        """The sum of the trees for every row of ``x``, whose columns are ``names``."""
        if x.shape[1] != len(self.names):
            raise InvariantError(f"{x.shape[1]} features where the trees have {len(self.names)}")
        bins = np.column_stack([np.searchsorted(t, x[:, i]) for i, t in enumerate(self.thresholds)])
        step = max(1, _AT_ONCE // max(len(self.split_start), 1))
        parts = [self.leaf[self._leaves(bins[at : at + step])].sum(axis=1) for at in range(0, len(x), step)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _leaves(self, bins: IntArray) -> IntArray:
        """The leaf that every row (first axis) reaches in every tree (second)."""
        trees = len(self.split_start)
        counts = np.diff(np.append(self.split_start, len(self.feature)))
        of_split = np.repeat(np.arange(trees), counts)
        # children as numbers among all splits, or ~number among all leaves
        left, right = (
            np.where(child >= 0, child + self.split_start[of_split], child - self.leaf_start[of_split])
            for child in (self.left, self.right)
        )
        roots = np.where(counts > 0, self.split_start, ~self.leaf_start)
        at = np.tile(roots, len(bins))
        row = np.repeat(np.arange(len(bins)), trees)
        walking = np.flatnonzero(at >= 0)
        while len(walking):
            split = at[walking]
            goes_left = bins[row[walking], self.feature[split]] <= self.bin[split]
            at[walking] = np.where(goes_left, left[split], right[split])
            walking = walking[at[walking] >= 0]
        return (~at).reshape(len(bins), trees)


def pack_trees(trees: Trees) -> dict[str, npt.NDArray[Any]]:
    """Pack trees into compact arrays for ``numpy.savez_compressed``."""
    return {
        "names": np.array(trees.names),
        "thresholds": np.concatenate(trees.thresholds).astype(np.float32),
        "threshold_counts": np.array([len(t) for t in trees.thresholds], dtype=np.int16),
        "feature": trees.feature.astype(np.uint8),
        "bin": trees.bin.astype(np.uint8),
        "left": trees.left.astype(np.int8 if trees.left.size == 0 or _small(trees) else np.int16),
        "right": trees.right.astype(np.int8 if trees.right.size == 0 or _small(trees) else np.int16),
        "leaf": trees.leaf.astype(np.float16),
        "split_counts": np.diff(np.append(trees.split_start, len(trees.feature))).astype(np.int16),
    }


def _small(trees: Trees) -> bool:
    children = np.concatenate([trees.left, trees.right])
    return bool(children.min() >= -128 and children.max() < 128)


def unpack_trees(arrays: Mapping[str, npt.NDArray[Any]]) -> Trees:
    """Restore the trees that ``pack_trees`` packed."""
    counts = arrays["split_counts"].astype(np.intp)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
    cuts = np.cumsum(arrays["threshold_counts"].astype(np.intp))[:-1]
    return Trees(
        names=tuple(str(name) for name in arrays["names"]),
        thresholds=tuple(np.split(arrays["thresholds"].astype(float), cuts)),
        feature=arrays["feature"].astype(np.intp),
        bin=arrays["bin"].astype(np.intp),
        left=arrays["left"].astype(np.intp),
        right=arrays["right"].astype(np.intp),
        leaf=arrays["leaf"].astype(float),
        split_start=starts,
        # a tree has one leaf more than splits
        leaf_start=starts + np.arange(len(starts)),
    )


#: Features whose numbers are names: one input per level, the first level is none of them.
CATEGORIES = ("optimizer", "activation")


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Weights of all layers, and what they expect."""

    names: tuple[str, ...]
    #: Per feature: levels with an input of their own; none where the feature is a number.
    levels: tuple[FloatArray, ...]
    #: Per input: mean, standard deviation and range in what was learned from.
    centre: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    #: Inputs x outputs, and a bias each.
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    #: Range of the targets in what was learned from.
    bounds: tuple[float, float]

    def predict(self, x: FloatArray) -> FloatArray:
        """The output for every row of ``x``, whose columns are ``names``."""
        if x.shape[1] != len(self.names):
            raise InvariantError(f"{x.shape[1]} features where the network has {len(self.names)}")
        inputs = np.clip(encode(x, self.levels), self.low, self.high)
        found = (inputs - self.centre) / self.scale
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            found = np.maximum(found @ weight + bias, 0.0)
        return np.clip((found @ last[0] + last[1])[:, 0], *self.bounds)


def levels_of(x: FloatArray, names: Sequence[str]) -> tuple[FloatArray, ...]:
    """The levels of every column that occur in ``x``, without the first."""
    return tuple(
        np.unique(x[:, i])[1:] if name in CATEGORIES else np.zeros(0) for i, name in enumerate(names)
    )


def encode(x: FloatArray, levels: Sequence[FloatArray]) -> FloatArray:
    """Numbers as they are, categories as one column of 0 and 1 per level."""
    parts = []
    for i, known in enumerate(levels):
        column = x[:, i : i + 1]
        parts.append((column == known).astype(float) if len(known) else column)
    return np.hstack(parts)


def pack_network(network: FeedForward) -> dict[str, npt.NDArray[Any]]:
    """Pack a network into compact arrays for ``numpy.savez_compressed``; weights are rounded to 16 bits."""
    found: dict[str, npt.NDArray[Any]] = {
        "names": np.array(network.names),
        "levels": np.concatenate(network.levels),
        "level_counts": np.array([len(each) for each in network.levels], dtype=np.int16),
        "inputs": np.stack([network.centre, network.scale, network.low, network.high]),
        "bounds": np.array(network.bounds),
        "depth": np.array(len(network.weights)),
    }
    for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        found[f"weight_{i}"], found[f"bias_{i}"] = weight.astype(np.float16), bias.astype(np.float16)
    return found


def unpack_network(arrays: Mapping[str, npt.NDArray[Any]]) -> FeedForward:
    """Restore the network that ``pack_network`` packed, except for the rounding of its weights."""
    centre, scale, low, high = arrays["inputs"].astype(float)
    depth = range(int(arrays["depth"]))
    least, most = arrays["bounds"].tolist()
    return FeedForward(
        names=tuple(str(name) for name in arrays["names"]),
        levels=tuple(np.split(arrays["levels"].astype(float), np.cumsum(arrays["level_counts"])[:-1])),
        centre=centre,
        scale=scale,
        low=low,
        high=high,
        weights=tuple(arrays[f"weight_{i}"].astype(float) for i in depth),
        biases=tuple(arrays[f"bias_{i}"].astype(float) for i in depth),
        bounds=(least, most),
    )


ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
#: AdamW was not measured; it moves what Adam moves.
_OPTIMIZERS = {name: rank for rank, name in enumerate(OPTIMIZER_STATE)} | {
    "adamw": list(OPTIMIZER_STATE).index("adam")
}
_TILE_ROWS, _TILE_COLUMNS, _CORES_PER_UNIT = 128, 64, 128


def features(layers: Sequence[Layer], optimizers: Sequence[str], gpu: Gpu) -> dict[str, FloatArray]:
    """One column per feature, the same columns for every layer of a kind."""
    found = shape_features(layers, optimizers)
    return {**found, **device_features(found, gpu)}


def shape_features(layers: Sequence[Layer], optimizers: Sequence[str]) -> dict[str, FloatArray]:
    """Features that do not depend on the device."""
    batch, rows, columns, depth = (column(layers, n) for n in ("batch", "rows", "columns", "depth"))
    work = step_work(layers, optimizers)
    found = {
        "batch": batch,
        "optimizer": np.array([_OPTIMIZERS[name] for name in optimizers], dtype=float),
        "activation": np.array([ACTIVATIONS.index(layer.activation) for layer in layers], dtype=float),
        "channels_in": column(layers, "channels_in"),
        "channels_out": column(layers, "channels_out"),
        "rows": _log(rows),
        "depth": _log(depth),
        "widening": _log(columns / np.maximum(depth, 1)),
        "flops": _log(work.flops),
        "moved": _log(work.moved_bytes),
        "intensity": _log(work.flops / np.maximum(work.moved_bytes, 1)),
        "parameters": _log(column(layers, "parameters")),
        "full_depth_8": _fill(depth, 8),
        "full_depth_32": _fill(depth, 32),
        "tiles": _log(_tiles(rows, columns)),
    }
    for width in (32, 64, 128):
        found[f"full_columns_{width}"] = _fill(columns, width)
        found[f"full_rows_{width}"] = _fill(rows, width)
    if layers and layers[0].kind == "convolution":
        found |= _convolution(layers)
    return found


def _convolution(layers: Sequence[Layer]) -> dict[str, FloatArray]:
    size, kernel, stride = (column(layers, n) for n in ("size", "kernel", "stride"))
    channels_in, out_size = column(layers, "channels_in"), column(layers, "out_size")
    padded = np.where(column(layers, "same_padding") > 0, size + kernel - 1, size)
    return {
        "size": size,
        "kernel": kernel,
        "stride": stride,
        "out_size": out_size,
        "same": column(layers, "same_padding"),
        "bias": column(layers, "bias"),
        "input": _log(column(layers, "input_bytes")),
        "output": _log(column(layers, "output_bytes")),
        # columns of the input that no window reaches
        "left_over": np.mod(np.maximum(size - kernel, 0), stride),
        "full_channels_8": _fill(channels_in, 8),
        "full_channels_32": _fill(channels_in, 32),
        # transforms work on powers of two
        "full_transform": padded / 2 ** np.ceil(np.log2(np.maximum(padded, 1))),
        "full_size_4": np.mod(size, 4),
    }


def device_features(shape: dict[str, FloatArray], gpu: Gpu) -> dict[str, FloatArray]:
    """Features that depend on the device: its figures, and the layer's work in units of them."""
    peak, bandwidth = gpu.peak_flops("fp32"), gpu.bandwidth_bytes_s
    same = np.ones_like(shape["batch"])
    waves = np.exp(shape["tiles"]) * _CORES_PER_UNIT / max(gpu.cores, _CORES_PER_UNIT)
    found = {
        "peak": same * gpu.fp32_tflops,
        "bandwidth": same * gpu.bandwidth_gb_s,
        "cores": same * gpu.cores,
        "clock": same * gpu.clock_mhz,
        "ridge": same * peak / bandwidth,
        "compute_time": shape["flops"] - np.log(peak),
        "memory_time": shape["moved"] - np.log(bandwidth),
        "parameter_time": shape["parameters"] - np.log(bandwidth),
        "full_wave": waves / np.ceil(waves),
    }
    for name in ("input", "output"):
        if name in shape:
            found[f"{name}_time"] = shape[name] - np.log(bandwidth)
    return found


def matrix(columns: dict[str, FloatArray], names: Sequence[str]) -> FloatArray:
    """The named features side by side."""
    return np.column_stack([columns[name] for name in names])


def _log(values: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(values, 1e-12)))


def _fill(values: FloatArray, width: int) -> FloatArray:
    whole = np.ceil(np.maximum(values, 1) / width) * width
    return np.asarray(values / whole)


def _tiles(rows: FloatArray, columns: FloatArray) -> FloatArray:
    tall, wide = np.ceil(np.maximum(rows, 1) / _TILE_ROWS), np.ceil(np.maximum(columns, 1) / _TILE_COLUMNS)
    return np.asarray(tall * wide)


LEARNED: tuple[Kind, ...] = ("convolution", "dense")
Learner = Literal["trees", "network"]
LEARNERS: tuple[Learner, ...] = ("trees", "network")


@dataclass(frozen=True, slots=True)
class Learned:
    """The learned model of one kind of layer."""

    efficiency: Efficiency
    regressor: Trees | FeedForward
    #: The devices whose layers were measured.
    gpus: tuple[str, ...]
    #: 10% and 90% quantiles of log(true / predicted) held out: on a measured device, and on one left out.
    interval: tuple[float, float]
    unseen_interval: tuple[float, float]
    #: Least and most FLOPs of a step in the measurements, as logarithms.
    flops_range: tuple[float, float]

    def log_roofline(
        self, layers: Sequence[Layer], optimizers: Sequence[str], gpu: Gpu, precision: str = "fp32"
    ) -> FloatArray:
        """Logarithm of the analytic time, with the learned efficiency of this kind.

        Args:
            layers: Layers of this kind.
            optimizers: The optimizer of each layer.
            gpu: The device.
            precision: Number format.
        """
        rows = terms(step_work(layers, optimizers, precision), gpu, precision)
        one = self.efficiency
        return np.asarray(np.log(rows @ [one.overhead_s, one.compute, one.memory]))

    def residuals(self, layers: Sequence[Layer], optimizers: Sequence[str]) -> FloatArray:
        """Learned logarithm of time over the roofline, for every layer (rows) on every measured device (columns)."""
        shape = shape_features(layers, optimizers)
        every = np.vstack([self._inputs(shape, find_gpu(name)) for name in self.gpus])
        return self.regressor.predict(every).reshape(len(self.gpus), len(layers)).T

    def residual(self, layers: Sequence[Layer], optimizers: Sequence[str], gpu: Gpu) -> FloatArray:
        """Learned logarithm of time over the roofline, for every layer on one measured device."""
        return self.regressor.predict(self._inputs(shape_features(layers, optimizers), gpu))

    def _inputs(self, shape: dict[str, FloatArray], gpu: Gpu) -> FloatArray:
        return matrix({**shape, **device_features(shape, gpu)}, self.regressor.names)


def to_arrays(learned: Learned) -> dict[str, npt.NDArray[Any]]:
    """Convert a learned predictor to arrays for ``numpy.savez_compressed``."""
    one = learned.efficiency
    regressor = learned.regressor
    packed = pack_trees(regressor) if isinstance(regressor, Trees) else pack_network(regressor)
    return {
        **packed,
        "efficiency": np.array([one.overhead_s, one.compute, one.memory]),
        "gpus": np.array(learned.gpus),
        "intervals": np.array([learned.interval, learned.unseen_interval]),
        "flops_range": np.array(learned.flops_range),
    }


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Learned:
    """Restore the learned predictor that ``to_arrays`` converted."""
    overhead, compute, memory = arrays["efficiency"].tolist()
    (low, high), (unseen_low, unseen_high) = arrays["intervals"].tolist()
    least, most = arrays["flops_range"].tolist()
    return Learned(
        efficiency=Efficiency(overhead_s=overhead, compute=compute, memory=memory),
        regressor=unpack_trees(arrays) if "leaf" in arrays else unpack_network(arrays),
        gpus=tuple(str(name) for name in arrays["gpus"]),
        interval=(low, high),
        unseen_interval=(unseen_low, unseen_high),
        flops_range=(least, most),
    )


@cache
def shipped(kind: Kind, learner: Learner = "trees") -> Learned | None:
    """The shipped model of a kind of layer; None where nothing was measured."""
    if kind not in LEARNED:
        return None
    with files("coadapt.prediction.layers").joinpath("data", file_name(kind, learner)).open("rb") as stream:
        return from_arrays(dict(np.load(stream, allow_pickle=False)))


def file_name(kind: str, learner: Learner) -> str:
    """Name of the file in which the learned predictor of a kind is shipped."""
    return f"{kind}.npz" if learner == "trees" else f"{kind}-{learner}.npz"
