"""Co-configuration as published: tabu search over (workers, batch size) on isotonic models.

Liang et al., "A Collaborative Method for Resource Allocation and Batch Sizing on Distributed Deep Learning System",
Chinese Journal of Computers 45(2), 2022, algorithm 2: from a random valid option, in each of NG rounds the options one step away in
workers or in batch size are evaluated and the search moves to the best that is not tabu, whether better or not. Passes: the most that fit, then
the fewest that reach the accuracy. Reward 1/cost (or 1/time, or the metric, for the paper's other two questions); among equal
rewards the higher accuracy.

What the text leaves open and we had to choose: a step is one place on the grid; 200 rounds; an option is tabu for 30 rounds; where every
neighbour is tabu, a random option; where no option is valid, see ``option_choice.likeliest_of``.

``PublishedForecast``, which other published planners use too, predicts by weighted isotonic curves
(``prediction.samples.isotonic``), without a spread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from coadapt.errors import InputError
from coadapt.planning.option_choice import likeliest_of, picked
from coadapt.planning.option_outlook import Columns, Forecast, Outlook, Passes, columns_of, look
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import isotonic
from coadapt.prediction.samples.isotonic import EPOCH_SHAPES, WeightedParams, metric_shapes, values_at
from coadapt.prediction.samples.sample_table import EpochTable, MetricTable, epoch_columns, metric_columns

ROUNDS, TENURE = 200, 30
_STEPS = 2000


class CoConfigurationPlanner:
    """``forecast``: for asking what the search does on other models than the published ones."""

    name = "co-configuration"
    order = 20

    def __init__(self, rounds: int = ROUNDS, tenure: int = TENURE, forecast: Forecast | None = None) -> None:
        self._rounds, self._tenure, self._forecast = rounds, tenure, forecast

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Choose by tabu search over ``options`` for ``question``, by forecasts from ``evidence``.

        ``rng`` draws the start and the restarts; ``trial`` is not used.
        """
        check(question, options)
        columns = columns_of(question, options)
        outlook = look(question, columns, self._forecast or PublishedForecast(evidence))
        valid = set(np.flatnonzero(outlook.chance >= question.confidence).tolist())
        pick = self._search(question, options, outlook, valid, rng) if valid else None
        pick = likeliest_of(question, outlook) if pick is None else pick
        return picked(self.name, question, columns, outlook, pick)

    def _search(
        self,
        question: Question,
        options: Sequence[Option],
        outlook: Outlook,
        valid: set[int],
        rng: np.random.Generator,
    ) -> int:
        steps = _neighbours(options)
        start = sorted(valid)
        current = best = start[int(rng.integers(len(start)))]
        tabu: deque[int] = deque([current], maxlen=self._tenure)
        for _ in range(self._rounds):
            free = [i for i in steps[current] if i in valid and i not in tabu]
            if free:
                current = max(free, key=lambda i: _reward(question, outlook, i))
            else:
                current = start[int(rng.integers(len(start)))]
            tabu.append(current)
            best = max(best, current, key=lambda i: _reward(question, outlook, i))
        return best


def _reward(question: Question, outlook: Outlook, i: int) -> tuple[float, float]:
    metric = 0.0 if outlook.metric is None else float(outlook.metric[i])
    metric = metric if question.higher_is_better else -metric
    if question.objective == "metric":
        return metric, -float(outlook.cost[i])
    paid = outlook.cost[i] if question.objective == "cost" else outlook.total_s[i]
    return 1 / max(float(paid), 1e-300), metric


def _neighbours(options: Sequence[Option]) -> list[list[int]]:
    """Per option those of its GPU type one place away in workers or in batch size."""
    lines: dict[tuple[str, str, int], list[int]] = {}
    for i, option in enumerate(options):
        lines.setdefault((option.gpu_type, "workers", option.batch), []).append(i)
        lines.setdefault((option.gpu_type, "batch", option.replicas), []).append(i)
    found: list[list[int]] = [[] for _ in options]
    for (_, along, _), line in lines.items():
        line.sort(key=lambda i: options[i].replicas if along == "workers" else options[i].batch)
        for a, b in itertools.pairwise(line):
            found[a].append(b)
            found[b].append(a)
    return found


class PublishedForecast:
    """Implements ``Forecast`` as Liang et al. 2022 predict; GPU types differ only by their own samples."""

    def __init__(self, evidence: Evidence) -> None:
        known = {name: table for name, table in evidence.epochs.items() if table.samples}
        if not known:
            raise InputError("pass times are unknown: give samples of past runs, or measure with --profile")
        self._times = {name: _times(table) for name, table in known.items()}
        self._source = max(known, key=lambda name: (len(known[name].samples), name))
        table = evidence.metrics
        self._higher = table is None or table.higher_is_better
        self._metric = _metric(table) if table is not None and table.samples else None

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        found = np.empty(len(columns.batch))
        x = np.stack([columns.batch, columns.replicas], axis=1)
        for name in np.unique(columns.gpu_type):
            mine = columns.gpu_type == name
            found[mine] = values_at(self._times.get(str(name), self._times[self._source]), x[mine])
        return np.maximum(found, 1e-9), np.zeros(len(found))

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``: the fewest that reach it, the most that were sampled where none does."""
        params = self._known_metric()
        curve = params.curves[1]
        epochs = np.linspace(curve.x[0], curve.x[-1], _STEPS)
        sign = 1.0 if self._higher else -1.0
        sizes, of_option = np.unique(batch, return_inverse=True)
        needed, reached = np.empty(len(sizes)), np.empty(len(sizes))
        for i, size in enumerate(sizes):
            good = (
                sign * values_at(params, np.stack([np.full(_STEPS, size), epochs], axis=1)) >= sign * target
            )
            needed[i], reached[i] = epochs[int(np.argmax(good))] if good.any() else epochs[-1], good.any()
        return Passes(needed[of_option], np.zeros(len(batch)), reached[of_option])

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``: an epoch is a pass here."""
        return np.full(len(batch), epochs)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        if self._metric is None:
            return None
        return values_at(self._metric, np.stack([batch, passes], axis=1)), np.zeros(len(batch))

    def longest(self) -> float:
        """Most passes that were sampled."""
        return float(self._known_metric().curves[1].x[-1])

    def _known_metric(self) -> WeightedParams:
        if self._metric is None:
            raise InputError(
                "the metric is unknown: give past runs with the metric, or plan without a target"
            )
        return self._metric


@lru_cache(maxsize=64)
def _times(table: EpochTable) -> WeightedParams:
    rows = epoch_columns(table)
    return isotonic.fit_rows(rows[:, :2], rows[:, 3], EPOCH_SHAPES)


@lru_cache(maxsize=64)
def _metric(table: MetricTable) -> WeightedParams:
    rows = metric_columns(table)
    return isotonic.fit_rows(rows[:, :2], rows[:, 2], metric_shapes(table.higher_is_better))
