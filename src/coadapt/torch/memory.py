"""Running out of memory is not the end: the pass is made again in pieces, and the limit remembered.

``Guarded`` stands around the script's model, inside whatever synchronises it. Where the forward pass does not fit it is made in
pieces, of which only the input is kept. A pass that is larger than what has fit so far is guarded: where its backward
pass does not fit, that is made again in pieces. To DDP and to the other replicas it is a backward pass like any other, so
nobody has to agree on anything; the new limit reaches all by a notice. What has fit a few times runs without a guard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from coadapt.torch.pieces import Redo

log = logging.getLogger(__name__)
#: Passes after which a size is known to fit: the first step makes the optimizer's state, the next one lives beside it.
_ENOUGH = 3


class MemoryLimit:
    """The most examples in one backward pass, half of what did not fit; None while everything did.

    ``atomic`` is what all replicas have agreed on, and the same on all of them: how a step is shared depends on it.
    """

    def __init__(self) -> None:
        self.atomic: int | None = None
        #: A limit found here that the other replicas have not been told yet.
        self.untold: int | None = None
        self._found: int | None = None
        #: Called when one is found: there is something to do between steps.
        self.interrupt: Callable[[], None] = lambda: None
        #: Whether the gradient of an earlier pass of the step is kept meanwhile: there is less room then.
        self.beside = False
        #: Numbers in the largest input that has fit, and how often; without and with such a gradient.
        self._fit, self._often = [0, 0], [0, 0]

    def met(self, size: int) -> None:
        """So many examples did not fit into one pass."""
        most = size // 2
        if self._found is not None and self._found <= most:
            return
        self._found = self.untold = most
        self.interrupt()
        log.warning(
            "out of memory at %d examples in one pass; made again in pieces, at most %d from now on",
            size,
            most,
        )

    def agreed(self, atomic: int) -> None:
        """All replicas keep to ``atomic`` from the same step on."""
        self.atomic = min(atomic, self.atomic or atomic)

    def proven(self, numbers: int) -> bool:
        """Whether an input of so many numbers is known to fit."""
        return self._often[self.beside] >= _ENOUGH and numbers <= self._fit[self.beside]

    def fit(self, numbers: int) -> None:
        """A pass, backward too, was made with it."""
        if numbers > self._fit[self.beside]:
            self._fit[self.beside], self._often[self.beside] = numbers, 0
        if numbers == self._fit[self.beside]:
            self._often[self.beside] += 1


class Guarded(nn.Module):
    """The script's model, whose passes are made in pieces where they do not fit into memory."""

    def __init__(self, module: nn.Module, memory: MemoryLimit) -> None:
        super().__init__()
        self.module, self._memory = module, memory
        # found at once, where a submodule is looked for in several places
        self.__dict__["_call"] = module

    def forward(self, *given: Any, **named: Any) -> Any:
        """The model's own."""
        memory, numbers = self._memory, numbers_in(given)
        if named:
            numbers += numbers_in(named.values())
        try:
            output = self._call(*given, **named)
        except torch.OutOfMemoryError as error:
            failure = error.with_traceback(None)  # its frames hold what must be freed
        else:
            if memory.proven(numbers):
                return output
            return Redo(self.module, (given, named), fit=lambda: memory.fit(numbers), met=memory.met).guard(
                output
            )
        return Redo(self.module, (given, named), fit=lambda: None, met=memory.met).in_pieces(failure)

    # straight to it: nobody hangs hooks on this, and a module's own call would cost every step
    __call__ = forward


def numbers_in(values: Iterable[Any]) -> int:
    """Elements of all tensors in what a model is given."""
    count = 0
    for value in values:
        if isinstance(value, Tensor):
            count += value.numel()
        elif isinstance(value, (list, tuple)):
            count += numbers_in(value)
        elif isinstance(value, dict):
            count += numbers_in(value.values())
    return count
