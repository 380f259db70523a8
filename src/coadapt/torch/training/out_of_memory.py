"""Out of memory: the pass is repeated with its activations in host memory, and later passes are smaller.

``MemoryGuard`` stands around the script's model, inside whatever synchronises it. If the forward pass runs out of GPU memory, random
generators and buffers are reset and it runs again under ``torch.autograd.graph.save_on_cpu``: the device then holds the activations
of one operation at a time. If the backward pass runs out, the whole pass is repeated in the same way inside one autograd
node. It is the same pass on the same examples with the same random numbers, buffers and autocast, so the gradient is that of
a pass that fits. To DistributedDataParallel it is an ordinary backward pass: a replica in trouble misses no collective.
From then on a pass has at most half as many examples: ``MemoryLimit``, which all replicas adopt at the same step. A pass that
fails even so, or that has a single example, raises the error. An input size that has fitted three times runs unguarded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as tree

from coadapt.torch.elastic import random_state

log = logging.getLogger(__name__)
#: Passes after which an input size is known to fit: the first step creates the optimizer's state, the next one runs beside it.
_ENOUGH = 3
#: Outputs of a model besides tensors that certainly contain no tensor.
_WITHOUT_TENSORS = (int, float, str, type(None))


class MemoryLimit:
    """Owns the largest number of examples in one backward pass: half of what did not fit; None while everything did.

    ``atomic`` is what all replicas have agreed on: how a step is divided depends on it, so it must be the same on all of them.
    ``ReplicaTraining`` calls ``begin_pass``, ``MemoryGuard`` the rest; ``interrupt`` is called when a limit is found.
    """

    def __init__(self, interrupt: Callable[[], None] = lambda: None) -> None:
        self.atomic: int | None = None
        #: A limit found here that the other replicas do not know yet.
        self.unannounced: int | None = None
        self._found: int | None = None
        self._interrupt = interrupt
        #: Examples of the present pass, and whether the gradient of an earlier pass of the step is in memory beside it.
        self._examples, self._gradient_held = 0, False
        #: Numbers in the largest input that has fitted, and how often; without and with such a gradient.
        self._fitted, self._times = [0, 0], [0, 0]

    def begin_pass(self, *, examples: int, gradient_held: bool) -> None:
        """Note the number of examples in the next pass; ``gradient_held``: it is not the first of its step."""
        self._examples, self._gradient_held = examples, gradient_held

    def exceeded(self, failure: Exception) -> None:
        """The present pass did not fit. Raises ``failure`` if it cannot be made smaller next time."""
        if self._examples < 2:
            raise failure
        most = self._examples // 2
        if self._found is None or most < self._found:
            self._found = self.unannounced = most
            self._interrupt()
            log.warning(
                "out of memory at %d examples in one pass: it is repeated with activations in host memory; "
                "later passes have at most %d examples",
                self._examples,
                most,
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def agree(self, atomic: int) -> None:
        """All replicas use the limit ``atomic`` from the same step on."""
        self.atomic = min(atomic, self.atomic or atomic)

    def known_to_fit(self, numbers: int) -> bool:
        """Whether a pass with an input of this many elements is known to fit."""
        return self._times[self._gradient_held] >= _ENOUGH and numbers <= self._fitted[self._gradient_held]

    def record_fit(self, numbers: int) -> None:
        """Note that a pass with an input of this many elements has fitted, its backward part included."""
        held = self._gradient_held
        if numbers > self._fitted[held]:
            self._fitted[held], self._times[held] = numbers, 0
        if numbers == self._fitted[held]:
            self._times[held] += 1


class MemoryGuard(nn.Module):
    """The script's model; a pass that does not fit into memory is repeated."""

    def __init__(self, module: nn.Module, memory: MemoryLimit) -> None:
        super().__init__()
        self.module, self._memory = module, memory
        # an instance attribute: looking up a submodule costs more, in every step
        self.__dict__["_call"] = module

    def forward(self, *given: Any, **named: Any) -> Any:
        """Run the model."""
        memory, numbers = self._memory, numbers_in(given)
        if named:
            numbers += numbers_in(named.values())
        known = memory.known_to_fit(numbers)
        conditions = None if known else _Conditions.now(self.module)
        try:
            output = self._call(*given, **named)
        except torch.OutOfMemoryError as error:
            failure = error.with_traceback(None)  # its frames hold tensors that must be freed
        else:
            if conditions is None:
                return output
            record_fit = lambda: memory.record_fit(numbers)  # noqa: E731 - of this pass
            return _GuardedPass(
                self.module, (given, named), conditions, record_fit=record_fit, exceeded=memory.exceeded
            ).guard(output)
        memory.exceeded(failure)
        if conditions is not None:
            conditions.restore(self.module)
        with torch.autograd.graph.save_on_cpu():
            return self._call(*given, **named)

    # no hooks are registered on this module, and ``Module.__call__`` would cost time in every step
    __call__ = forward


class _Conditions(NamedTuple):
    """What a forward pass depends on besides its inputs and parameters."""

    generators: dict[str, Any]
    buffers: list[Tensor]

    @staticmethod
    def now(module: nn.Module) -> _Conditions:
        return _Conditions(random_state.generators(), [buffer.clone() for buffer in module.buffers()])

    def restore(self, module: nn.Module) -> None:
        random_state.restore(self.generators)
        with torch.no_grad():
            for buffer, value in zip(module.buffers(), self.buffers, strict=True):
                # an unchanged buffer may be saved in another graph, which forbids writing to it
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


class _GuardedPass:
    """One pass of ``module`` on ``inputs`` that fitted forward. Its backward pass repeats it if that does not fit.

    ``conditions`` are those before the forward pass; ``record_fit`` is called if the backward pass fits, ``exceeded`` if it does not.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        conditions: _Conditions,
        *,
        record_fit: Callable[[], None],
        exceeded: Callable[[Exception], None],
    ) -> None:
        self._module, self._inputs, self._conditions = module, inputs, conditions
        self._record_fit, self._exceeded = record_fit, exceeded
        leaves = [leaf for leaf in tree.tree_leaves(inputs) if _differentiable(leaf)]
        #: What gradients are computed for.
        self.sources = [*(p for p in module.parameters() if p.requires_grad), *leaves]
        self._autocast = _autocast(self.sources[0].device.type) if self.sources else {}
        #: The differentiable outputs with their graph, and their places among all outputs, flattened.
        self._outputs: list[Tensor] = []
        self._places: list[int] = []

    def guard(self, output: Any) -> Any:
        """The same ``output``, whose backward pass goes through ``gradients``."""
        leaves, shape = tree.tree_flatten(output)
        self._places = [i for i, leaf in enumerate(leaves) if _differentiable(leaf)]
        known = all(isinstance(leaf, (Tensor, *_WITHOUT_TENSORS)) for leaf in leaves)
        if not known or not self._places:
            return output
        self._outputs = [leaves[i] for i in self._places]
        guarded = _Node.apply(self, self._outputs, *self.sources)
        for i, leaf in zip(self._places, guarded, strict=True):
            leaves[i] = leaf
        return tree.tree_unflatten(leaves, shape)

    def gradients(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of ``sources`` from those of the outputs."""
        try:
            found = _grad(self._outputs, self.sources, grads)
        except torch.OutOfMemoryError as error:
            failure = error.with_traceback(None)
        else:
            self._record_fit()
            return found
        self._outputs = []  # frees the graph
        self._exceeded(failure)
        return self._repeat(grads)

    def _repeat(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        present = _Conditions.now(self._module)
        self._conditions.restore(self._module)
        given, named = self._inputs
        try:
            with (
                torch.enable_grad(),
                torch.autocast(**self._autocast),
                torch.autograd.graph.save_on_cpu(),
            ):
                leaves = tree.tree_leaves(self._module(*given, **named))
            return _grad([leaves[i] for i in self._places], self.sources, grads)
        finally:
            present.restore(self._module)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, guarded: _GuardedPass, outputs: list[Tensor], *sources: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.guarded = guarded
        ctx.set_materialize_grads(False)
        return tuple(output.detach() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        guarded, ctx.guarded = ctx.guarded, None
        return (None, None, *guarded.gradients(grads))


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _grad(
    outputs: Sequence[Tensor], sources: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    used = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    used = [(output, grad) for output, grad in used if output.requires_grad]
    if not used:
        return [None] * len(sources)
    outs, given = zip(*used, strict=True)
    return list(torch.autograd.grad(outs, list(sources), given, allow_unused=True))


def _autocast(device: str) -> dict[str, Any]:
    """The script's autocast settings, for repeating the pass outside of its context."""
    return {
        "device_type": device,
        "enabled": torch.is_autocast_enabled(device),
        "dtype": torch.get_autocast_dtype(device),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }


def numbers_in(values: Iterable[Any]) -> int:
    """Elements of all tensors among the inputs of a model."""
    count = 0
    for value in values:
        if isinstance(value, Tensor):
            count += value.numel()
        elif isinstance(value, (list, tuple)):
            count += numbers_in(value)
        elif isinstance(value, dict):
            count += numbers_in(value.values())
    return count
