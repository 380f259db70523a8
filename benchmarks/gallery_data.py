"""Made-up data of the gallery, in float64, so that two runs can be compared to 1e-9."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


def _made(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 208, classes: int = 4, seed: int = 1) -> TensorDataset:
    """Small images of one channel, and their classes."""
    x = torch.randn(count, 1, 8, 8, generator=_made(seed), dtype=torch.float64)
    teacher = torch.randn(64, classes, generator=_made(7), dtype=torch.float64)
    return TensorDataset(x, (x.flatten(1) @ teacher).argmax(1))


def vectors(count: int = 208, seed: int = 1) -> TensorDataset:
    """Vectors of 6 numbers, and one of three classes."""
    x = torch.randn(count, 6, generator=_made(seed), dtype=torch.float64)
    return TensorDataset(x, (x @ torch.randn(6, 3, generator=_made(8), dtype=torch.float64)).argmax(1))


def tokens(count: int = 4096, vocabulary: int = 17, seed: int = 3) -> Tensor:
    """A text of tokens, each of which depends on the one before."""
    made = _made(seed)
    jumps = torch.randint(0, 3, (count,), generator=made)
    return jumps.cumsum(0) % vocabulary


def sentences(count: int = 208, seed: int = 4) -> list[dict[str, object]]:
    """Sentences of unequal lengths with a label."""
    made, found = _made(seed), []
    for _ in range(count):
        length = int(torch.randint(3, 9, (1,), generator=made))
        ids = torch.randint(1, 17, (length,), generator=made)
        found.append({"ids": ids.tolist(), "label": int(ids.sum()) % 2})
    return found
