"""Tensors as one vector per kind of number and device: one message instead of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors that can share a vector, in order."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


@contextmanager
def flattened(alike: Sequence[Tensor]) -> Iterator[Tensor]:
    """The vector of some tensors of one kind; what is in it at the end is written back to them."""
    flat = alike[0].reshape(-1) if len(alike) == 1 else torch.cat([tensor.reshape(-1) for tensor in alike])
    yield flat
    if len(alike) == 1 and flat.data_ptr() == alike[0].data_ptr():
        return
    pieces = flat.split([tensor.numel() for tensor in alike])
    torch._foreach_copy_(list(alike), [p.view_as(t) for p, t in zip(pieces, alike, strict=True)])


def slices(numel: int, count: int) -> list[tuple[int, int]]:
    """(begin, end) of ``count`` parts as equal as can be."""
    ends = [numel * (number + 1) // count for number in range(count)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
