"""How replicas come to one gradient: the seam between the agent and a synchronisation architecture.

``Gradients`` calls a ``Sync`` in this order, once per optimizer step:

    overlap(on)                before every backward pass
    exchange(grads)            once, when the last backward pass of a step is over, unless that pass overlapped
    update(step)               when the training script calls ``optimizer.step()``

One new architecture is one file here and one line in ``ARCHITECTURES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class Sync(Protocol):
    """Made anew for every generation of the process group. Called by the training thread only."""

    @property
    def overlaps(self) -> bool:
        """True if a backward pass can average gradients by itself, with equal weights, while it computes."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module whose forward pass is run: ``model`` itself, or one that hooks into its backward pass."""

    def overlap(self, on: bool) -> None:
        """Whether the next backward pass averages by itself; always False where ``overlaps`` is."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """Replaces each gradient, in place, by its sum over all replicas: weights are already in it."""

    def update(self, step: Callable[[], Any]) -> Any:
        """Lets the optimizer make its step here, or has it made elsewhere (parameter servers)."""
