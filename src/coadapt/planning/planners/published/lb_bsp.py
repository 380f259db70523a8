"""LB-BSP: the batch size of the highest throughput, shared out by the speed of the workers.

Chen et al., "Semi-dynamic load balancing: efficient distributed learning in non-dedicated environments", SoCC 2020: workers of unequal speed
get unequal parts of a batch, so that all finish a step together (``torch.batches.lb_bsp`` does that in a running job). With
equal workers, as in Liang et al. 2022, only the choice of a batch size by computing speed remains; the number of workers is
that of the published co-configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.planning.option_choice import picked
from coadapt.planning.option_outlook import columns_of, look
from coadapt.planning.planners.published.co_configuration import CoConfigurationPlanner, PublishedForecast
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
