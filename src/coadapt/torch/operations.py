"""One tensor operation as a ``Layer``: its kind, its work and its shape, from the shapes of its tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from coadapt.predict.layers.layer import Kind, Layer

_FP32_BYTES = 4
#: Operations that only look at the same memory in another way.
# fmt: off
VIEWS = frozenset((
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "expand_as", "unsqueeze",
    "squeeze", "slice", "select", "split", "split_with_sizes", "chunk", "detach", "alias", "as_strided",
    "unbind", "flatten", "unflatten", "narrow", "view_as", "lift_fresh", "_reshape_alias", "movedim",
    "numpy_T", "diagonal", "is_same_size", "empty", "empty_like", "new_empty", "empty_strided", "zeros",
    "zeros_like", "new_zeros", "ones", "full", "arange", "scalar_tensor", "ones_like", "full_like", "eye",
    "tril_indices", "sym_size", "sym_numel", "sym_stride", "size", "stride", "is_contiguous", "unfold",
    "resize_", "set_", "item", "_local_scalar_dense",
))
# fmt: on
_PRODUCTS = frozenset(["mm", "addmm", "linear"])
_BATCHED = frozenset(["bmm", "baddbmm"])
# fmt: off
_ACTIVATIONS = frozenset((
    "relu", "relu_", "gelu", "silu", "silu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "leaky_relu", "elu",
    "hardtanh", "hardtanh_", "hardswish", "hardswish_", "hardsigmoid", "mish", "softplus", "_softmax",
    "_log_softmax", "native_dropout", "bernoulli_", "_prelu_kernel", "log_sigmoid_forward",
))
# fmt: on


def kind_of(name: str) -> Kind:
    """By the name of the operation."""
    if name in _PRODUCTS:
        return "dense"
    if "convolution" in name:
        return "convolution"
    if name in _BATCHED or "attention" in name:
        return "attention"
    if "norm" in name and "linalg" not in name:
        return "normalisation"
    if "pool" in name or "upsample" in name:
        return "pooling"
    if "embedding" in name:
        return "embedding"
    return "activation" if name in _ACTIVATIONS else "other"


def as_layer(name: str, operation: str, args: tuple[Any, ...], outputs: Any, batch: int) -> Layer:
    """The operation applied to ``args`` gave ``outputs``."""
    kind = kind_of(operation)
    inputs, made = tensors(args), tensors((outputs,))
    weights = sum(t.numel() for t in inputs if isinstance(t, torch.nn.Parameter))
    read = sum(t.numel() for t in inputs if not isinstance(t, torch.nn.Parameter)) * _FP32_BYTES
    written = sum(t.numel() for t in made) * _FP32_BYTES
    basic = Layer(
        name=name,
        kind=kind,
        batch=batch,
        # one per number made or read: what elementwise work costs
        flops=max(read, written) / _FP32_BYTES,
        input_bytes=read,
        output_bytes=written,
        parameters=weights,
    )
    if kind == "convolution":
        return _convolution(basic, args, made[0])
    if kind == "dense":
        return _dense(basic, operation, args, made[0])
    if kind == "attention":
        return _attention(basic, operation, inputs)
    if kind == "embedding":
        # of the table only the rows looked up are read; all of it has gradients and is updated
        return _with(basic, input_bytes=written, flops=float(written / _FP32_BYTES))
    return basic


def tensors(values: Any) -> list[torch.Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors(value)]
    return []


def _with(layer: Layer, **changes: Any) -> Layer:
    from msgspec.structs import replace

    return replace(layer, **changes)


def _convolution(layer: Layer, args: tuple[Any, ...], out: torch.Tensor) -> Layer:
    source, weight, bias, stride, padding, _, transposed = args[:7]
    groups = int(args[8])
    spatial = math.prod(weight.shape[2:])
    # a transposed convolution is the gradient of one that goes the other way
    small, large = (source, out) if transposed else (out, source)
    rows = small.shape[0] * math.prod(small.shape[2:])
    columns, depth = weight.shape[0], weight.shape[1] * spatial
    size = _side(large.shape[2:])
    return _with(
        layer,
        batch=source.shape[0],
        flops=2.0 * rows * columns * depth,
        rows=rows,
        columns=columns / groups,
        depth=depth,
        size=size,
        out_size=_side(small.shape[2:]),
        kernel=_side(weight.shape[2:]),
        stride=float(stride[0]),
        groups=groups,
        channels_in=large.shape[1],
        channels_out=small.shape[1],
        same_padding=any(p > 0 for p in padding),
        bias=bias is not None,
        parameters=weight.numel() + (bias.numel() if bias is not None else 0),
        input_bytes=source.numel() * _FP32_BYTES,
    )


def _side(shape: torch.Size) -> float:
    """The side of a square (or cube) of as many pixels."""
    return float(math.prod(shape) ** (1 / len(shape)))


def _dense(layer: Layer, operation: str, args: tuple[Any, ...], out: torch.Tensor) -> Layer:
    left = args[1] if operation == "addmm" else args[0]
    rows, depth, columns = math.prod(left.shape[:-1]), left.shape[-1], out.shape[-1]
    bias = columns if operation == "addmm" else 0
    # the weight arrives transposed, as a view that is no Parameter any more
    return _with(
        layer,
        batch=rows,
        flops=2.0 * rows * depth * columns,
        rows=rows,
        columns=columns,
        depth=depth,
        channels_in=depth,
        channels_out=columns,
        bias=bias > 0,
        parameters=depth * columns + bias,
        input_bytes=rows * depth * _FP32_BYTES,
    )


def _attention(layer: Layer, operation: str, inputs: list[torch.Tensor]) -> Layer:
    if operation in _BATCHED:
        left, right = inputs[-2:]
        many, rows, depth, columns = left.shape[0], left.shape[1], left.shape[2], right.shape[2]
        flops = 2.0 * many * rows * depth * columns
    else:
        query, key, value = inputs[:3]
        many, rows, depth = math.prod(query.shape[:-2]), query.shape[-2], query.shape[-1]
        columns = key.shape[-2]
        flops = 2.0 * many * rows * columns * (depth + value.shape[-1])
    return _with(layer, flops=flops, rows=many * rows, columns=columns, depth=depth)
