"""LB-BSP: the batch size of the highest throughput, shared out by the speed of the workers.

Chen et al., "Semi-dynamic load balancing: efficient distributed learning in non-dedicated environments", SoCC 2020: workers of unequal speed
get unequal parts of a batch, so that all finish a step together (``shares``). With equal workers, as in Liang et al.
2022, what is left of it is a batch size chosen for computing speed alone; the number of workers is that of the published co-configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.errors import InputError
from coadapt.planning.option_choice import picked
from coadapt.planning.option_outlook import columns_of, look
from coadapt.planning.planners.published._isotonic import PublishedForecast
from coadapt.planning.planners.published.co_configuration import CoConfigurationPlanner
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check


class LbBspPlanner:
    """Throughput decides the batch size."""

    name = "lb-bsp"
    order = 40

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Choose the batch size with the highest throughput, for the workers of the published co-configuration.

        ``question``, ``options``, ``evidence`` and ``rng`` as in ``Planner``; ``trial`` is not used.
        """
        check(question, options)
        given = CoConfigurationPlanner().plan(question, options, evidence, rng).row.option
        columns = columns_of(question, options)
        forecast = PublishedForecast(evidence)
        pass_s, _ = forecast.pass_s(columns)
        same = [
            i for i, o in enumerate(options) if (o.gpu_type, o.replicas) == (given.gpu_type, given.replicas)
        ]
        # a pass has the same examples whatever the batch size: the shortest one has the highest throughput
        pick = min(same, key=lambda i: (float(pass_s[i]), options[i].batch))
        return picked(self.name, question, columns, look(question, columns, forecast), pick)


def shares(batch: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Examples of each worker, in proportion to its speed (examples/s), that add up to ``batch``; at least 1 each."""
    if not speeds or any(not (np.isfinite(speed) and speed > 0) for speed in speeds):
        raise InputError("speeds must be positive numbers, one per worker")
    if batch < len(speeds):
        raise InputError(f"a batch of {batch} cannot be shared by {len(speeds)} workers")
    spare = batch - len(speeds)
    exact = spare * np.array(speeds) / sum(speeds)
    given = np.floor(exact).astype(np.int64)
    for i in np.argsort(given - exact, kind="stable")[: spare - int(given.sum())]:
        given[i] += 1
    return tuple(int(n) + 1 for n in given)
