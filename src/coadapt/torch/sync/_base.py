"""How replicas come to one gradient: the seam between the agent and a synchronisation architecture.

``Gradients`` calls a ``Sync`` in this order, once per optimizer step:

    overlap(on)                before every backward pass
    exchange(grads)            once, when the last backward pass of a step is over, unless that pass overlapped
    update(step)               when the training script calls ``optimizer.step()``

``wrap`` and ``open`` come first, ``close`` last; ``bring_home`` before a checkpoint. One new architecture is one file here and
one line in ``ARCHITECTURES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from coadapt.torch.group import Group


class Sync(Protocol):
    """Made anew for every generation of the process group. Called by the training thread only."""

    @property
    def overlaps(self) -> bool:
        """True if a backward pass can average gradients by itself, with equal weights, while it computes."""

    @property
    def in_step(self) -> bool:
        """True if all replicas make every step together; else nothing may be summed over them inside the loop."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module whose forward pass is run: ``model`` itself, or one that hooks into its backward pass."""

    def open(self, group: Group, optimizer: Optimizer) -> None:
        """All replicas are there; ``optimizer`` has the state to go on from."""

    def overlap(self, on: bool) -> None:
        """Whether the next backward pass averages by itself; always False where ``overlaps`` is."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its sum over all replicas: weights are already in it."""

    def update(self, step: Callable[[], Any]) -> Any:
        """Lets the optimizer make its step here, or has it made elsewhere (asynchronous parameter servers)."""

    def bring_home(self) -> None:
        """The first replica's model and optimizer get what lives elsewhere. All replicas call it together."""

    def close(self) -> None:
        """This generation is over."""


class InStep:
    """What synchronous architectures have in common: every replica makes the same step with its own optimizer."""

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

    def bring_home(self) -> None:
        """See ``Sync``: it is at home."""

    def close(self) -> None:
        """See ``Sync``."""
