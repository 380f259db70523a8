"""Central synchronisation: every replica sends its gradient to the first one, which sends back the sum.

Of a gradient of X bytes 2 X (N - 1) go through the first replica's link, where a ring sends 2 X (N - 1) / N through every one
(PALEO, Qi et al., ICLR 2017). Summed in order of rank: the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.torch.sync._base import InStep, by_kind, flattened


class Central(InStep):
    """Implements ``Sync``."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``."""
        for alike in by_kind(gradients):
            with flattened(alike) as flat:
                _sum_at_first(flat)


def _sum_at_first(flat: Tensor) -> None:
    others = range(1, dist.get_world_size())
    if dist.get_rank():
        dist.send(flat, 0)
        dist.recv(flat, 0)
        return
    parts = [torch.empty_like(flat) for _ in others]
    for receiving in [dist.irecv(part, rank) for rank, part in zip(others, parts, strict=True)]:
        assert receiving is not None
        receiving.wait()
    for part in parts:
        flat += part
    for sending in [dist.isend(flat, rank) for rank in others]:
        assert sending is not None
        sending.wait()
