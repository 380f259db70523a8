"""Records a forward pass: every tensor operation as a ``Layer``, with the bytes that it saves for the backward pass.

A dispatch mode sees each operation after autograd, on any device. The meta device computes shapes only, so that a model of any size
is traced in a second and without memory. Recurrent modules, whose loops would be thousands of operations, are one layer each. The
kind, the work and the shape of a layer follow from the shapes of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec.structs import replace
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from coadapt.prediction.layers.layer import Kind, Layer

_FP32_BYTES = 4
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Recorder(TorchDispatchMode):
    """Owns the layers recorded so far, and the module that is running."""

    def __init__(self, model: torch.nn.Module, batch: int) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self.reached: set[str] = set()
        self.path: list[str] = []
        self._batch = batch
        self._quiet = 0
        self._pending = 0.0
        self._parameters = {_key(p) for p in model.parameters()} | {_key(b) for b in model.buffers()}
        self._saved: dict[int, torch.Tensor] = {}

    @property
    def where(self) -> str:
        """The innermost module that is running."""
        return self.path[-1] if self.path else "(model)"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See ``TorchDispatchMode``."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        made = tensors((out,))
        # counters (of batches) are not work
        counts = all(t.numel() == 1 and not t.is_floating_point() for t in made)
        if not self._quiet and name not in VIEWS and not counts:
            self.layers.append(as_layer(self.where, name, tuple(args), out, self._batch))
            self._settle()
        return out

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Called by autograd for every tensor that it saves; a storage counts once, parameters do not count."""
        key = _key(tensor)
        if key not in self._parameters and key not in self._saved:
            # referenced, so that its storage is not freed and its address not reused
            self._saved[key] = tensor.detach()
            self._pending += tensor.untyped_storage().nbytes()
            self._settle()
        return tensor

    def _settle(self) -> None:
        """Attribute saved bytes to the operation before (or, at first, to the next one)."""
        if self.layers and self._pending and not self._quiet:
            last = self.layers[-1]
            self.layers[-1] = replace(last, saved_bytes=last.saved_bytes + self._pending)
            self._pending = 0.0

    def enter(self, name: str, module: torch.nn.Module) -> None:
        """A module begins."""
        self.path.append(name)
        self.reached.add(name)
        if isinstance(module, torch.nn.RNNBase):
            self._quiet += 1

    def leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        """A module has ended."""
        if isinstance(module, torch.nn.RNNBase):
            self._quiet -= 1
            if args[0].device.type == "meta":
                self._pending = saved_by(module, args[0])
            self.layers.append(recurrent(self.where, module, args[0], self._batch))
            self._settle()
        self.path.pop()


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def saved_by(module: torch.nn.RNNBase, source: torch.Tensor) -> float:
    """Bytes that a recurrent module saves: they depend on the library, so a copy runs on the CPU with a few examples."""
    few = 2
    options = {
        "num_layers": module.num_layers,
        "bias": module.bias,
        "batch_first": module.batch_first,
        "bidirectional": module.bidirectional,
    }
    whole = source.shape[0] if module.batch_first else source.shape[1]
    shape = list(source.shape)
    shape[0 if module.batch_first else 1] = few
    found: dict[int, torch.Tensor] = {}
    with torch.utils._python_dispatch._disable_current_modes(), torch.device("cpu"):
        kind = getattr(torch.nn, module.mode.split("_")[0])
        copy = kind(module.input_size, module.hidden_size, **options)
        own = {_key(p) for p in copy.parameters()}
        with saved_tensors_hooks(lambda t: found.setdefault(_key(t), t.detach()), lambda t: t):
            copy(torch.zeros(shape, requires_grad=True))
    size = sum(t.untyped_storage().nbytes() for key, t in found.items() if key not in own)
    return size * whole / few


def recurrent(name: str, module: torch.nn.RNNBase, source: torch.Tensor, batch: int) -> Layer:
    """One layer for all layers, directions and time steps of recurrent ``module`` called ``name``, with input ``source`` of ``batch`` examples."""
    gates = next(count for kind, count in _GATES.items() if module.mode.startswith(kind))
    steps = source.shape[1] if module.batch_first else source.shape[0]
    rows = source.numel() / source.shape[-1]
    directions = 2 if module.bidirectional else 1
    flops, wide = 0.0, module.input_size
    for _ in range(module.num_layers):
        flops += directions * 2.0 * rows * gates * module.hidden_size * (wide + module.hidden_size)
        wide = directions * module.hidden_size
    out = rows * wide * _FP32_BYTES
    return Layer(
        name=name,
        kind="recurrent",
        batch=batch,
        flops=flops,
        input_bytes=source.numel() * _FP32_BYTES,
        output_bytes=out,
        parameters=sum(p.numel() for p in module.parameters()),
        rows=rows,
        columns=gates * module.hidden_size,
        depth=module.input_size + module.hidden_size,
        channels_in=module.input_size,
        channels_out=module.hidden_size,
        steps=steps * module.num_layers * directions,
    )


@contextmanager
def recording(model: torch.nn.Module, batch: int) -> Iterator[Recorder]:
    """Record every operation of ``model`` inside the block."""
    recorder = Recorder(model, batch)
    handles = []
    for name, module in model.named_modules():
        label = name or type(model).__name__
        handles.append(
            module.register_forward_pre_hook(lambda each, args, label=label: recorder.enter(label, each))
        )
        handles.append(module.register_forward_hook(lambda each, args, out: recorder.leave(each, args, out)))
    try:
        with saved_tensors_hooks(recorder.keep, lambda tensor: tensor), recorder:
            yield recorder
    finally:
        for handle in handles:
            handle.remove()


#: Operations that only return another view of the same memory.
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
    """The kind of a layer, by the name of its operation."""
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
    """An operation as a layer.

    Args:
        name: The module that ran it.
        operation: The name of the operation.
        args: Its arguments.
        outputs: Its results.
        batch: Examples in the batch.
    """
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
        return replace(basic, input_bytes=written, flops=float(written / _FP32_BYTES))
    return basic


def tensors(values: Any) -> list[torch.Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors(value)]
    return []


def _convolution(layer: Layer, args: tuple[Any, ...], out: torch.Tensor) -> Layer:
    source, weight, bias, stride, padding, _, transposed = args[:7]
    groups = int(args[8])
    spatial = math.prod(weight.shape[2:])
    # a transposed convolution is the gradient of one that goes the other way
    small, large = (source, out) if transposed else (out, source)
    rows = small.shape[0] * math.prod(small.shape[2:])
    columns, depth = weight.shape[0], weight.shape[1] * spatial
    size = _side(large.shape[2:])
    return replace(
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
    return replace(
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
    return replace(layer, flops=flops, rows=many * rows, columns=columns, depth=depth)
