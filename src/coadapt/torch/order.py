"""The order of the examples in each pass: the same on every replica and after every restart, made from (seed, pass)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from coadapt.errors import InputError


def pass_seed(seed: int, number: int) -> int:
    """A seed for one pass; neighbouring seeds and passes share none."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def order_of(length: int, number: int, *, seed: int, shuffle: bool) -> Sequence[int] | torch.Tensor:
    """Indices of all examples in the order of pass ``number``."""
    if not shuffle:
        return range(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed(pass_seed(seed, number)))


def sampler_order(sampler: Sampler[Any], number: int, *, seed: int) -> list[int]:
    """What the script's own sampler gives for pass ``number``, with all randomness it can draw on seeded."""
    seed = pass_seed(seed, number)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(number)
    if getattr(sampler, "generator", self_made := object()) is not self_made:
        sampler.generator = torch.Generator().manual_seed(seed)
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            found = list(sampler)
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
    if not found:
        raise InputError(f"the sampler gave no example in pass {number}")
    if isinstance(found[0], (list, tuple)):
        raise InputError(
            "the sampler yields batches; pass one that yields single examples: batches are made here"
        )
    return found
