"""Co-configuration as published: tabu search over (workers, batch size) on isotonic models.

Liang et al., "A Collaborative Method for Resource Allocation and Batch Sizing on Distributed Deep Learning System",
Chinese Journal of Computers 45(2), 2022, algorithm 2: from a random valid option, in each of NG rounds the options one step away in
workers or in batch size are looked at and the best that is not tabu is moved to, whether better or not. Passes: the most that fit, then
the fewest that reach the accuracy. Reward 1/cost (or 1/time, or the metric, for the paper's other two questions); among equal
rewards the higher accuracy.

What the text leaves open and we had to choose: a step is one place on the grid; 200 rounds; an option is tabu for 30 rounds; where every
neighbour is tabu, a random option; where no option is valid, see ``option_choice.likeliest_of``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np

from coadapt.planning.option_choice import likeliest_of, picked
from coadapt.planning.option_outlook import Forecast, Outlook, columns_of, look
from coadapt.planning.planners.published._isotonic import PublishedForecast
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check

ROUNDS, TENURE = 200, 30


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
