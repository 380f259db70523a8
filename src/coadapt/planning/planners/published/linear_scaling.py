"""The rule of thumb: k GPUs, k times the batch size, k times the learning rate, one k-th of the time (Goyal et al. 2017).

What one knows is the run at the smallest batch size; the fewest GPUs that meet the deadline by that rule are taken, each with the batch
that one GPU had. That more examples are needed at larger batches, and that GPUs wait for each other, the rule does not say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.errors import InputError
from coadapt.planning.option_choice import best_of, likeliest_of, picked
from coadapt.planning.option_outlook import Columns, Passes, columns_of, look
from coadapt.planning.problem import Evidence, Option, Plan, Question, Trial, check
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.isotonic import fit_curve, value_at
from coadapt.prediction.samples.sample_table import epoch_columns, metric_columns

_STEPS = 2000


class _LinearForecast:
    """One GPU's pass time divided by the GPUs; the curve of the smallest batch size for all."""

    def __init__(self, evidence: Evidence) -> None:
        self._one: dict[str, float] = {}
        for name, table in evidence.epochs.items():
            rows = epoch_columns(table)
            if len(rows):
                nearest = rows[np.lexsort((rows[:, 0], rows[:, 1]))[0]]
                self._one[name] = float(nearest[3] * nearest[1])
        if not self._one:
            raise InputError("pass times are unknown: give samples of past runs, or measure with --profile")
        self._metrics = evidence.metrics

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        other = max(self._one.values())
        one = np.array([self._one.get(str(name), other) for name in columns.gpu_type])
        return one / columns.replicas, np.zeros(len(columns.batch))

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        x, y = self._curve()
        sign = 1.0 if self._metrics is None or self._metrics.higher_is_better else -1.0
        good = sign * y >= sign * target
        passes = float(x[int(np.argmax(good))]) if good.any() else float(x[-1])
        same = np.ones(len(batch))
        return Passes(passes * same, 0 * same, float(good.any()) * same)

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return np.full(len(batch), epochs)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        if self._metrics is None or not self._metrics.samples:
            return None
        x, y = self._curve()
        return np.interp(passes, x, y), np.zeros(len(batch))

    def _curve(self) -> tuple[FloatArray, FloatArray]:
        if self._metrics is None or not self._metrics.samples:
            raise InputError(
                "the metric is unknown: give past runs with the metric, or plan without a target"
            )
        rows = metric_columns(self._metrics)
        own = rows[rows[:, 0] == rows[:, 0].min()]
        curve = fit_curve(own[:, 1], own[:, 2], "rising" if self._metrics.higher_is_better else "falling")
        x = np.linspace(curve.x[0], curve.x[-1], _STEPS)
        return x, value_at(curve, x)


class LinearScalingPlanner:
    """``per_gpu``: the batch of one GPU; None: the smallest batch size offered."""

    name = "linear-scaling"
    order = 90

    def __init__(self, per_gpu: int | None = None) -> None:
        self._per_gpu = per_gpu

    def plan(
        self,
        question: Question,
        options: Sequence[Option],
        evidence: Evidence,
        rng: np.random.Generator,
        trial: Trial | None = None,
    ) -> Plan:
        """Choose the fewest GPUs that satisfy ``question`` by linear scaling of the run in ``evidence``.

        ``options`` as in ``Planner``; ``rng`` and ``trial`` are not used.
        """
        check(question, options)
        per_gpu = self._per_gpu or min(option.batch for option in options)
        nearest: dict[tuple[str, int], int] = {}
        for i, option in enumerate(options):
            key = option.gpu_type, option.replicas
            if key not in nearest or _off(option, per_gpu) < _off(options[nearest[key]], per_gpu):
                nearest[key] = i
        own = sorted(nearest.values(), key=lambda i: options[i].replicas)
        forecast = _LinearForecast(evidence)
        outlook = look(question, columns_of(question, [options[i] for i in own]), forecast)
        holds = np.flatnonzero(outlook.chance >= question.confidence)
        if question.objective == "cost" and len(holds):
            best: int | None = int(holds[0])  # all cost the same by the rule: the fewest GPUs
        else:
            best = best_of(question, outlook)
        pick = own[likeliest_of(question, outlook) if best is None else best]
        columns = columns_of(question, options)
        return picked(self.name, question, columns, look(question, columns, forecast), pick)


def _off(option: Option, per_gpu: int) -> float:
    return abs(float(np.log(option.batch / (per_gpu * option.replicas))))
