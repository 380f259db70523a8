"""No adaptation: the total is M0 whatever the replicas (``Fixed``), or M0 per replica as plain DDP scripts have it (``PerGpu``)."""

from __future__ import annotations

from coadapt.torch.batches._base import Chosen, Situation


class Fixed:
    """The global batch is kept at M0: a resize changes nothing in what is learned."""

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        return Chosen(now.limits.initial, now.limits.per_gpu_max, why="the batch size is fixed")


class PerGpu:
    """M0 per replica, up to the largest batch allowed."""

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        batch = min(now.limits.initial * now.replicas, now.limits.max)
        return Chosen(batch, now.limits.per_gpu_max, why=f"{now.limits.initial} examples per replica")
