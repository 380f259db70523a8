"""Ring all-reduce through PyTorch: DistributedDataParallel where weights are equal, one flat all-reduce where not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Ring:
    """Implements ``Sync``; ``options`` go to DistributedDataParallel."""

    overlaps = True

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        self._wrapped: DistributedDataParallel | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """See ``Sync``."""
        self._wrapped = DistributedDataParallel(model, **self._options)
        return self._wrapped

    def overlap(self, on: bool) -> None:
        """See ``Sync``: the very flag that DDP's own ``no_sync`` sets."""
        assert self._wrapped is not None, "wrap comes first"
        self._wrapped.require_backward_grad_sync = on

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``."""
        by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for gradient in gradients:
            by_kind.setdefault((gradient.dtype, gradient.device), []).append(gradient)
        for alike in by_kind.values():
            if len(alike) == 1:
                dist.all_reduce(alike[0])
                continue
            flat = torch.cat([gradient.reshape(-1) for gradient in alike])
            dist.all_reduce(flat)
            pieces = flat.split([gradient.numel() for gradient in alike])
            torch._foreach_copy_(alike, [p.view_as(g) for p, g in zip(pieces, alike, strict=True)])

    def update(self, step: Callable[[], Any]) -> Any:
        """See ``Sync``."""
        return step()


class Alone:
    """A single replica: there is nobody to synchronise with."""

    #: trivially: its gradient is the average
    overlaps = True

    def wrap(self, model: nn.Module) -> nn.Module:
        """See ``Sync``."""
        return model

    def overlap(self, on: bool) -> None:
        """See ``Sync``."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``."""

    def update(self, step: Callable[[], Any]) -> Any:
        """See ``Sync``."""
        return step()
