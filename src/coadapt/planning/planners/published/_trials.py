"""Base of planners that learn by running options: a trial for each option, and the choice of the best one tried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from coadapt.planning.forecasts import SampleForecast
from coadapt.planning.option_choice import answered
from coadapt.planning.option_outlook import Columns, Outlook, columns_of, limits_s, look
from coadapt.planning.problem import Evidence, Option, Outcome, Plan, Question, Trial, check


class Tries:
    """Runs options, each at most once.

    Args:
        question: The limits and the objective.
        options: All options.
        evidence: Past measurements, used where there is no ``trial``.
        trial: Runs an option; None: the forecast of an option stands for its run.
    """

    def __init__(
        self, question: Question, options: Sequence[Option], evidence: Evidence, trial: Trial | None
    ) -> None:
        self.question, self.options = question, options
        self.columns: Columns = columns_of(question, options)
        self._limit = limits_s(question, self.columns)
        self.known: dict[int, Outcome] = {}
        self.outlook: Outlook | None = None
        if trial is None:
            self.outlook = look(question, self.columns, SampleForecast(evidence))
        self._trial = trial

    def run(self, i: int) -> Outcome:
        """The outcome of option ``i``; runs it if it was not run before."""
        if i not in self.known:
            self.known[i] = self._foretold(i) if self._trial is None else self._trial(self.options[i])
        return self.known[i]

    def score(self, i: int) -> tuple[bool, float, float]:
        """Sort key of option ``i``, the best first: options within the limits, by the objective, then by time."""
        outcome = self.run(i)
        late = outcome.total_s > self._limit[i] or not outcome.reached
        if late:
            short = 0.0 if outcome.reached else 1.0
            return True, short, outcome.total_s / self._limit[i]
        cost = outcome.total_s * float(self.columns.price_s[i])
        sign = -1.0 if self.question.higher_is_better else 1.0
        worth = {"cost": cost, "time": outcome.total_s, "metric": sign * outcome.metric}
        return False, worth[self.question.objective], outcome.total_s

    def plan(self, planner: str) -> Plan:
        """The plan with the best option that was tried; rows that were not tried are unknown."""
        pick = min(self.known, key=self.score)
        outlook = self._seen()
        return answered(
            planner,
            self.question,
            self.columns,
            outlook,
            None if self.score(pick)[0] else pick,
            likeliest=pick,
        )

    def _foretold(self, i: int) -> Outcome:
        outlook = self.outlook
        assert outlook is not None  # there is no trial
        metric = float("nan") if outlook.metric is None else float(outlook.metric[i])
        return Outcome(float(outlook.total_s[i]), metric, bool(outlook.reached[i] >= 0.5))

    def _seen(self) -> Outlook:
        """The outlook with observed outcomes; rows that are unknown cannot be chosen."""
        count = len(self.options)
        base = self.outlook
        total = np.full(count, np.inf) if base is None else base.total_s.copy()
        log_sd = np.zeros(count) if base is None else base.log_sd.copy()
        reached = np.zeros(count) if base is None else base.reached.copy()
        chance = np.zeros(count) if base is None else base.chance.copy()
        metric = np.full(count, np.nan) if base is None or base.metric is None else base.metric.copy()
        sd = np.zeros(count) if base is None or base.metric_sd is None else base.metric_sd.copy()
        for i, outcome in self.known.items():
            total[i], log_sd[i], reached[i], sd[i] = outcome.total_s, 0.0, float(outcome.reached), 0.0
            metric[i], chance[i] = outcome.metric, float(not self.score(i)[0])
        passes = np.ones(count) if base is None else base.passes
        return Outlook(
            passes=passes,
            passes_enough=passes if base is None else base.passes_enough,
            total_s=total,
            log_sd=log_sd,
            cost=total * self.columns.price_s,
            metric=metric,
            metric_sd=sd,
            reached=reached,
            chance=chance,
            limit_s=self._limit,
        )


class TryingPlanner(ABC):
    """A planner that runs some options and takes the best of them. ``tries``: maximum number of runs."""

    name: str
    most = 60

    def __init__(self, tries: int | None = None) -> None:
        self._tries = self.most if tries is None else tries

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Run some of the ``options`` and choose the best for ``question``.

        ``search`` draws from ``rng``. Options run by ``trial``; without one, ``evidence`` forecasts their runs.
        """
        check(question, options)
        tries = Tries(question, options, evidence, trial)
        self.search(tries, rng)
        return tries.plan(self.name)

    @abstractmethod
    def search(self, tries: Tries, rng: np.random.Generator) -> None:
        """Run the options that the method chooses."""
