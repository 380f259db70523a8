"""AdaBatch (Devarakonda et al., 2017): the batch size is multiplied at fixed intervals of epochs."""

from __future__ import annotations

from coadapt.errors import InputError
from coadapt.torch.batches._base import Chosen, Situation


class AdaBatch:
    """M0 x ``factor`` for every ``every`` epochs done."""

    name = "adabatch"
    order = 40

    def __init__(self, every: float = 20.0, factor: float = 2.0) -> None:
        if not (every > 0 and factor >= 1):
            raise InputError(
                f"AdaBatch(every={every}, factor={factor}): every must be above 0, factor at least 1"
            )
        self.every, self.factor = every, factor

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        times = int(now.epoch / self.every + 1e-9)
        batch = round(now.limits.initial * self.factor**times)
        return Chosen(min(batch, now.limits.max), now.limits.per_gpu_max, why=f"AdaBatch, {times} growths")
