"""Ring all-reduce through PyTorch: DistributedDataParallel where weights are equal, one flat all-reduce where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from coadapt.torch.sync._base import InStep, by_kind, flattened


class LateRing(InStep):
    """Implements ``Sync``: one flat all-reduce when the backward pass is over."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``."""
        for alike in by_kind(gradients):
            with flattened(alike) as flat:
                dist.all_reduce(flat)


class Ring(LateRing):
    """Overlaps with the backward pass where it can; ``options`` go to DistributedDataParallel."""

    overlaps = True

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        self._wrapped: DistributedDataParallel | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """See ``Sync``."""
        self._wrapped = DistributedDataParallel(model, **self._options)
        return self._wrapped

    def overlap(self, on: bool) -> None:
        """See ``Sync``: sets the flag that DDP's ``no_sync`` sets."""
        assert self._wrapped is not None, "wrap comes first"
        if self._wrapped.require_backward_grad_sync != on:
            self._wrapped.require_backward_grad_sync = on


class Alone(InStep):
    """A single replica: nothing to synchronise."""

    #: its gradient is the average
    overlaps = True

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``."""
