"""The interface of a synchronisation architecture: how the gradients of replicas become one.

``Gradients`` calls a ``Sync`` in this order, once per optimizer step:

    overlap(on)                before every backward pass
    exchange(grads)            once, when the last backward pass of a step is over, unless that pass overlapped
    update(step)               when the training script calls ``optimizer.step()``

``wrap`` and ``open`` come first, ``close`` last; ``pull_state`` before a checkpoint. A new architecture is one file here and one line
in ``ARCHITECTURES``. The functions below join tensors of one type and device into one vector: one message instead of many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coadapt.torch.elastic.process_group import Group


class Sync(Protocol):
    """Created for every generation of the process group. Called by the training thread only."""

    @property
    def overlaps(self) -> bool:
        """True if a backward pass can average gradients by itself, with equal weights, while it computes."""

    @property
    def in_step(self) -> bool:
        """True if all replicas make every step together; else no collective is allowed inside the loop."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module whose forward pass is run: ``model`` itself, or one that hooks into its backward pass."""

    def open(self, group: Group, optimizer: Optimizer) -> None:
        """Connect the replicas of ``group``; ``optimizer`` has its restored state."""

    def overlap(self, on: bool) -> None:
        """Set whether the next backward pass averages by itself; only False if ``overlaps`` is False."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Replace each gradient, in place, by its sum over all replicas. Gradients are already weighted."""

    def update(self, step: Callable[[], Any]) -> Any:
        """Call the optimizer's ``step``, or have it made elsewhere (asynchronous parameter servers)."""

    def pull_state(self) -> None:
        """Copy state that lives elsewhere into the first replica's model and optimizer. All replicas call it together."""

    def close(self) -> None:
        """Disconnect: this generation is over."""


class InStep:
    """Base of synchronous architectures: every replica makes the same step with its own optimizer."""

    overlaps = False
    in_step = True

    def wrap(self, model: nn.Module) -> nn.Module:
        """See ``Sync``."""
        return model

    def open(self, group: Group, optimizer: Optimizer) -> None:
        """See ``Sync``."""

    def overlap(self, on: bool) -> None:
        """See ``Sync``."""

    def update(self, step: Callable[[], Any]) -> Any:
        """See ``Sync``."""
        return step()

    def pull_state(self) -> None:
        """See ``Sync``: all state is here."""

    def close(self) -> None:
        """See ``Sync``."""


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All trained parameters, in the order of the groups."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Groups of tensors of the same type and device, in order."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


@contextmanager
def flattened(alike: Sequence[Tensor]) -> Iterator[Tensor]:
    """Tensors of one kind as one vector, whose content is written back to them at the end."""
    flat = alike[0].reshape(-1) if len(alike) == 1 else torch.cat([tensor.reshape(-1) for tensor in alike])
    yield flat
    if len(alike) == 1 and flat.data_ptr() == alike[0].data_ptr():
        return
    pieces = flat.split([tensor.numel() for tensor in alike])
    torch._foreach_copy_(list(alike), [p.view_as(t) for p, t in zip(pieces, alike, strict=True)])


def slices(numel: int, count: int) -> list[tuple[int, int]]:
    """(begin, end) of ``count`` parts, as equal as possible."""
    ends = [numel * (number + 1) // count for number in range(count)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
