"""CABS (Balles, Romero and Hennig, 2017): the batch size coupled to the learning rate.

    M = rate x S / loss,   S the sum of the variances of one example's gradient

The loss is the one the script reports: ``job.report(loss=...)``; before the first report the batch stays.
"""

from __future__ import annotations

import math

from coadapt.torch.batches._base import Chosen, Situation


class Cabs:
    """``loss`` names the reported metric."""

    name = "cabs"
    order = 50

    def __init__(self, loss: str = "loss") -> None:
        self.loss = loss

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        present = now.batch or now.limits.initial
        loss, spread = now.metrics.get(self.loss, 0.0), now.grad[1] * now.limits.initial
        wanted = now.rate * spread / loss if loss > 0 else 0.0
        if not (wanted > 0 and math.isfinite(wanted)):
            return Chosen(present, now.limits.per_gpu_max, why=f"CABS waits for job.report({self.loss}=...)")
        batch = min(max(round(wanted), now.limits.initial), now.limits.max)
        return Chosen(batch, now.limits.per_gpu_max, why=f"CABS: rate x variance / loss = {wanted:.0f}")
