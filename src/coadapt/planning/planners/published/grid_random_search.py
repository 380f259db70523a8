"""Grid and random search: options tried evenly over the grid, or at random; the best of them is taken."""

from __future__ import annotations

import numpy as np

from coadapt.planning.planners.published._trials import Tries, TryingPlanner


class GridPlanner(TryingPlanner):
    """Tries options spaced evenly over GPU types, sizes and batch sizes."""

    name = "grid"
    order = 70

    def search(self, tries: Tries, rng: np.random.Generator) -> None:
        """See ``TryingPlanner``."""
        options = tries.options
        order = sorted(
            range(len(options)), key=lambda i: (options[i].gpu_type, options[i].replicas, options[i].batch)
        )
        for place in np.unique(np.linspace(0, len(order) - 1, self._tries).round().astype(int)):
            tries.run(order[int(place)])


class RandomPlanner(TryingPlanner):
    """Tries options at random."""

    name = "random"
    order = 80

    def search(self, tries: Tries, rng: np.random.Generator) -> None:
        """See ``TryingPlanner``."""
        for i in rng.permutation(len(tries.options))[: self._tries]:
            tries.run(int(i))
