"""Features of dense layers and convolutions for the learned predictors: Justus et al. (IEEE Big Data 2018).

The paper takes the layer's own numbers (batch, sizes, channels, kernel, stride, padding, bias, activation,
optimizer) and the GPU's (peak, bandwidth, cores, clock). We add what decides how well a kernel fits a device:
the shape of the matrix product (rows M = batch x output pixels, columns N, depth K), how full its last tiles and
the last wave of tiles are, and the roofline's terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.predict._base import FloatArray
from coadapt.predict.hardware import Gpu
from coadapt.predict.layers.layer import OPTIMIZER_STATE, Layer
from coadapt.predict.layers.work import column, step_work

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
    """What does not depend on the device."""
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
    """What does: the device's figures, and the layer's work in units of them."""
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
