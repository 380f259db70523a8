"""The best of so many options tried at random: what a patient person without a model does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.configure.planners._tried import Tries
from coadapt.configure.problem import Evidence, Option, Plan, Question, Trial, check

TRIES = 60


class RandomPlanner:
    """``tries``: at most so many different options are run."""

    name = "random"

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
        for i in rng.permutation(len(options))[: self._tries]:
            tries.run(int(i))
        return tries.plan(self.name)
