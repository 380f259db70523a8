"""The default planner: evaluates every option and chooses the lowest expected cost among those that meet the limits
with the required probability (docs/design/0012-plan.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.planning.forecasts import SampleForecast
from coadapt.planning.option_choice import answered, best_of
from coadapt.planning.option_outlook import Forecast, columns_of, look
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check


class ExactPlanner:
    """``forecast``: where forecasts come from if not from the evidence's samples."""

    name = "exact"
    order = 10

    def __init__(self, forecast: Forecast | None = None) -> None:
        self._forecast = forecast

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Choose for ``question`` among all ``options`` by forecasts from ``evidence``; ``rng`` and ``trial`` are not used."""
        check(question, options)
        forecast = self._forecast or SampleForecast(evidence)
        columns = columns_of(question, options)
        outlook = look(question, columns, forecast)
        return answered(self.name, question, columns, outlook, best_of(question, outlook))
