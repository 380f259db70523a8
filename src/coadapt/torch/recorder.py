"""Watches a forward pass and writes down every operation as a layer, with what it keeps for the backward pass.

A dispatch mode sees each operation after autograd, on any device; the meta device computes shapes only, so a
model of any size is traced in a second and in no memory. Recurrent modules, whose loops would be thousands of
operations there, are taken as one layer each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec.structs import replace
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from coadapt.predict.layers.layer import Layer
from coadapt.torch.operations import VIEWS, as_layer, tensors

_FP32_BYTES = 4
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Recorder(TorchDispatchMode):
    """The layers so far, and where the model is now."""

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
        # counters (batches seen) are not work
        counts = all(t.numel() == 1 and not t.is_floating_point() for t in made)
        if not self._quiet and name not in VIEWS and not counts:
            self.layers.append(as_layer(self.where, name, tuple(args), out, self._batch))
            self._settle()
        return out

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Called by autograd for everything it saves; a storage counts once, parameters not at all."""
        key = _key(tensor)
        if key not in self._parameters and key not in self._saved:
            # held, so that its storage is not freed and its number used again
            self._saved[key] = tensor.detach()
            self._pending += tensor.untyped_storage().nbytes()
            self._settle()
        return tensor

    def _settle(self) -> None:
        """What was saved belongs to the operation before it (or, at first, to the one that comes)."""
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
    """What a recurrent module saves is up to the library: a copy of it really runs, with a few examples."""
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
    """All layers, directions and steps of a recurrent module."""
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
    """Everything the model does inside is written down."""
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
