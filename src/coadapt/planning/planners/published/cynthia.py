"""Cynthia: how many workers, for a batch size that is given.

Zheng et al., "Cynthia: cost-efficient cloud resource provisioning for predictable distributed deep neural network training", ICPP 2019:
a step takes the longer of computing and communicating, computing falls with workers and communication rises,

    T(B, K) = max(a B / K, b K)           pass time = T x passes' steps = T N / B

and the fewest-cost worker count that meets deadline and loss is taken. As in Liang et al. 2022 its loss model is replaced by their metric
model; the batch size is M0, the smallest one offered. a N and b N are fitted to the samples, by relative error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.planning.option_choice import best_of, likeliest_of, picked
from coadapt.planning.option_outlook import Columns, columns_of, look
from coadapt.planning.planners.published.co_configuration import PublishedForecast
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.sample_table import EpochTable, epoch_columns

_TRIED = 60


class _CynthiaForecast(PublishedForecast):
    """Metrics as published, pass times by the longer of computing and communicating."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence)
        self._terms = {name: _fit(table) for name, table in evidence.epochs.items() if table.samples}

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        found = np.empty(len(columns.batch))
        for name in np.unique(columns.gpu_type):
            mine = columns.gpu_type == name
            a, b = self._terms.get(str(name), self._terms[self._source])
            found[mine] = np.maximum(
                a / columns.replicas[mine], b * columns.replicas[mine] / columns.batch[mine]
            )
        return np.maximum(found, 1e-9), np.zeros(len(found))


class CynthiaPlanner:
    """``batch``: the batch size that is given; None: the smallest one offered."""

    name = "cynthia"
    order = 30

    def __init__(self, batch: int | None = None) -> None:
        self._batch = batch

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Choose the workers for the given batch size, by ``evidence``; ``rng`` and ``trial`` are not used.

        ``question`` and ``options`` as in ``Planner``.
        """
        check(question, options)
        batch = self._batch or min(option.batch for option in options)
        own = [i for i, option in enumerate(options) if option.batch == batch]
        few = columns_of(question, [options[i] for i in own])
        forecast = _CynthiaForecast(evidence)
        outlook = look(question, few, forecast)
        best = best_of(question, outlook)
        pick = own[likeliest_of(question, outlook) if best is None else best]
        columns = columns_of(question, options)
        return picked(self.name, question, columns, look(question, columns, forecast), pick)


def _fit(table: EpochTable) -> tuple[float, float]:
    """a N and b N: for each ratio of the two that is tried, the best scale is the median of what the rows say."""
    rows = epoch_columns(table)
    computing, talking = 1 / rows[:, 1], rows[:, 1] / rows[:, 0]
    best = (np.inf, 0.0, 0.0)
    middle = float(np.median(computing / talking))
    for ratio in np.concatenate([[0.0], middle * np.geomspace(1e-4, 1e2, _TRIED)]):
        form = np.maximum(computing, ratio * talking)
        scale = float(np.median(rows[:, 3] / form))
        error = float(np.abs(scale * form / rows[:, 3] - 1).mean())
        best = min(best, (error, scale, scale * float(ratio)))
    return best[1], best[2]
