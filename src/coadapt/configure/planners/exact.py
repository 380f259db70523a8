"""Ours: every option looked at, limits held with a probability, least expected cost (docs/design/0012-plan.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.configure.answer import answered
from coadapt.configure.decide import best_of
from coadapt.configure.forecasts import SampleForecast
from coadapt.configure.outlook import Forecast, columns_of, look
from coadapt.configure.problem import Evidence, Option, Plan, Question, Trial, check


class ExactPlanner:
    """``forecast``: where forecasts come from if not from the evidence's samples."""

    name = "exact"

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
        """See ``Planner``."""
        check(question, options)
        forecast = self._forecast or SampleForecast(evidence)
        columns = columns_of(question, options)
        outlook = look(question, columns, forecast)
        return answered(self.name, question, columns, outlook, best_of(question, outlook))
