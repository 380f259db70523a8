"""LB-BSP (Chen et al., SoCC 2020) and DBS (Ye et al., 2020): uneven workers get uneven shares of the same batch.

Shares are in proportion to measured speeds, so that all are done together. The gradient stays that of the whole
batch: every replica's part is weighted by its examples.
"""

from __future__ import annotations

from coadapt.torch.batches._base import BatchRule, Chosen, Situation
from coadapt.torch.batches.fixed import Fixed


class LoadBalanced:
    """Balances the batch that another rule has chosen; by default M0."""

    name = "lb-bsp"
    order = 60

    def __init__(self, rule: BatchRule | None = None) -> None:
        self.rule = rule or Fixed()

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        chosen = self.rule.choose(now)
        if len(now.example_s) != now.replicas or min(now.example_s) <= 0:
            return chosen
        speeds = tuple(1 / each for each in now.example_s)
        apart = max(speeds) / min(speeds)
        why = f"{chosen.why}; shares follow speeds, which differ by a factor of {apart:.2f}"
        # the fastest takes more than an even share in one pass, where its memory allows it
        return chosen._replace(atomic=now.limits.per_gpu_max, speeds=speeds, why=why)
