"""The best of so many options tried at random: what a patient person without a model does."""

from __future__ import annotations

import numpy as np

from coadapt.configure.planners._tried import Tries, TryingPlanner


class RandomPlanner(TryingPlanner):
    """See the module."""

    name = "random"

    def search(self, tries: Tries, rng: np.random.Generator) -> None:
        """See ``TryingPlanner``."""
        for i in rng.permutation(len(tries.options))[: self._tries]:
            tries.run(int(i))
