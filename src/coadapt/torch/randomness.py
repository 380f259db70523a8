"""The random generators of a replica: saved with a checkpoint, restored where the same replica comes back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from coadapt.torch.order import pass_seed


def generators() -> dict[str, Any]:
    """State of all of them."""
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
    """The inverse of ``generators``."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def reseed(seed: int, rank: int, step: int) -> None:
    """For a replica that was not there before: a stream of its own, the same whenever this is repeated."""
    own = pass_seed(pass_seed(seed, rank + 1), step)
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
