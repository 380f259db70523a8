"""No adaptation: M0 in total on any number of replicas (``Fixed``), or M0 per replica as in plain DDP scripts (``PerGpu``)."""

from __future__ import annotations

from coadapt.torch.batches._base import Chosen, Situation


class Fixed:
    """The total batch size is always M0: a resize does not change training."""

    name = "fixed"
    order = 20

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        return Chosen(now.limits.initial, now.limits.per_gpu_max, why="the batch size is fixed")


class PerGpu:
    """M0 per replica, up to the largest batch allowed."""

    name = "per-gpu"
    order = 30

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        batch = min(now.limits.initial * now.replicas, now.limits.max)
        return Chosen(batch, now.limits.per_gpu_max, why=f"{now.limits.initial} examples per replica")
