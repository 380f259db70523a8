"""Layers to predict."""

from __future__ import annotations

from typing import Any

from coadapt.prediction.layers import Layer


def a_dense(rows: int = 32, wide: int = 512, out: int = 512, **changes: Any) -> Layer:
    """A dense layer."""
    given: dict[str, Any] = {
        "name": "dense",
        "kind": "dense",
        "batch": rows,
        "flops": 2.0 * rows * wide * out,
        "input_bytes": 4.0 * rows * wide,
        "output_bytes": 4.0 * rows * out,
        "parameters": wide * out,
        "rows": rows,
        "columns": out,
        "depth": wide,
        "channels_in": wide,
        "channels_out": out,
        "saved_bytes": 4.0 * rows * wide,
    }
    return Layer(**{**given, **changes})


def a_convolution(batch: int = 16, size: int = 32, wide: int = 32, out: int = 64, kernel: int = 3) -> Layer:
    """A convolution that keeps the size."""
    rows, depth = batch * size * size, wide * kernel * kernel
    return Layer(
        name="convolution",
        kind="convolution",
        batch=batch,
        flops=2.0 * rows * depth * out,
        input_bytes=4.0 * rows * wide,
        output_bytes=4.0 * rows * out,
        parameters=depth * out,
        rows=rows,
        columns=out,
        depth=depth,
        size=size,
        out_size=size,
        kernel=kernel,
        channels_in=wide,
        channels_out=out,
        same_padding=True,
        saved_bytes=4.0 * rows * wide,
    )


def an_activation(numbers: float = 1e6) -> Layer:
    """A layer of which nothing was ever measured."""
    size = 4 * numbers
    return Layer(
        name="relu",
        kind="activation",
        batch=16,
        flops=numbers,
        input_bytes=size,
        output_bytes=size,
        saved_bytes=size,
    )
