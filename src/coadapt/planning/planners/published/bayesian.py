"""Bayesian optimisation of the batch size for the best final metric (Optuna), as hyper-parameter tuners do it.

Neither time nor cost is considered; the number of workers is that of the published co-configuration (Liang et al. 2022). At most
twenty trials, by Optuna's tree-structured Parzen estimator. Without a ``trial`` a run's metric is what the samples foretell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coadapt.errors import InputError
from coadapt.planning.option_choice import picked
from coadapt.planning.option_outlook import columns_of, look
from coadapt.planning.planners.published.co_configuration import CoConfigurationPlanner, PublishedForecast
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check

TRIALS = 20


class BayesianPlanner:
    """Needs the extra ``plan``."""

    name = "bayesian"
    order = 50

    def __init__(self, trials: int = TRIALS) -> None:
        self._trials = trials

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Choose the batch size with the best final metric, for the workers of the published co-configuration.

        ``options``, ``question`` and ``evidence`` as in ``Planner``; ``rng`` seeds Optuna, ``trial`` measures a metric.
        """
        check(question, options)
        given = CoConfigurationPlanner().plan(question, options, evidence, rng).row.option
        forecast = PublishedForecast(evidence)
        same = [
            i for i, o in enumerate(options) if (o.gpu_type, o.replicas) == (given.gpu_type, given.replicas)
        ]
        same.sort(key=lambda i: options[i].batch)

        def metric(place: int) -> float:
            option = options[same[place]]
            if trial is not None:
                return trial(option).metric
            found = forecast.metric_after(np.array([float(option.batch)]), np.array([forecast.longest()]))
            assert found is not None  # ``longest`` has looked
            return float(found[0][0])

        place = _best_place(metric, len(same), self._trials, question.higher_is_better, rng)
        columns = columns_of(question, options)
        return picked(self.name, question, columns, look(question, columns, forecast), same[place])


def _best_place(metric: Any, places: int, trials: int, higher: bool, rng: np.random.Generator) -> int:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "Bayesian optimisation needs Optuna: pip install 'coadapt[plan]', or choose another planner"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)))
    study = optuna.create_study(direction="maximize" if higher else "minimize", sampler=sampler)
    known: dict[int, float] = {}

    def objective(one: Any) -> float:
        place = one.suggest_int("place", 0, places - 1)
        if place not in known:
            known[place] = metric(place)
        return known[place]

    study.optimize(objective, n_trials=min(trials, 2 * places))
    return int(study.best_params["place"])
