"""The random generators of a replica: seeded, saved in checkpoints, and restored on the same number of replicas."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def pass_seed(seed: int, number: int) -> int:
    """A seed for one pass; neighbouring seeds and passes have unrelated ones."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def generators() -> dict[str, Any]:
    """The state of all generators."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys).tolist(), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore what ``generators`` has returned."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def reseed(seed: int, rank: int, step: int) -> None:
    """Seed all generators of a replica without a saved state: different on each replica, the same in every repetition."""
    own = pass_seed(pass_seed(seed, rank + 1), step)
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
