"""The best of so many options tried at random: what a patient person without a model does."""

from __future__ import annotations

import numpy as np

from coadapt.planning.planners.published._trials import Tries, TryingPlanner


class RandomPlanner(TryingPlanner):
    """Tries options at random."""

    name = "random"
    order = 80

    def search(self, tries: Tries, rng: np.random.Generator) -> None:
        """See ``TryingPlanner``."""
        for i in rng.permutation(len(tries.options))[: self._tries]:
            tries.run(int(i))
