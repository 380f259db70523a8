"""Grid search: options evenly chosen over GPU types, sizes and batch sizes are tried, the best of them taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.configure.planners._tried import Tries
from coadapt.configure.problem import Evidence, Option, Plan, Question, Trial, check

TRIES = 60


class GridPlanner:
    """``tries``: at most so many options are run."""

    name = "grid"

    def __init__(self, tries: int = TRIES) -> None:
        self._tries = tries

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """See ``Planner``."""
        check(question, options)
        tries = Tries(question, options, evidence, trial)
        order = sorted(
            range(len(options)), key=lambda i: (options[i].gpu_type, options[i].replicas, options[i].batch)
        )
        for place in np.unique(np.linspace(0, len(order) - 1, self._tries).round().astype(int)):
            tries.run(order[int(place)])
        return tries.plan(self.name)
