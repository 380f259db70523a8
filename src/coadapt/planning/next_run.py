"""The next short run: the option whose measurement is worth most.

``next_run`` chooses during a measuring session. A run shows its own pass time and, through the fit, those of its
neighbours. The first three runs span the space; after that, each is the option with the lowest optimistic value
(forecast less one and a half standard deviations) among the options not yet run that may satisfy the limits. The session
ends when the lowest value of all belongs to an option that was run, or when no other may beat it by more than ``worth``.

``worth_running`` says which short run would pay most before anything is launched. A plan from past runs chooses among
what they show; an option far from all of them may be much cheaper and yet not be chosen, because its time is too
uncertain. For a few pass times that represent what is possible: the option would be chosen where it then satisfies the
limits with the required confidence, and would save the difference to the present choice. The mean saving is the value of
the run (expected value of information, Howard 1966).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from scipy.special import ndtri

from coadapt.planning.option_choice import best_of, expected, likeliest_of
from coadapt.planning.option_outlook import Columns, Forecast, Outlook, Passes, columns_of, look
from coadapt.planning.problem import Option, Plan, Question, ShortRun
from coadapt.prediction._base import FloatArray

_OPTIMISM = 1.5


def first_runs(options: Sequence[Option]) -> list[int]:
    """Three options that span the space: smallest on few GPUs, largest on many, and one between."""
    order = sorted(range(len(options)), key=lambda i: (options[i].gpus, options[i].batch))
    smallest, largest = order[0], max(order, key=lambda i: (options[i].batch, options[i].gpus))
    few = [i for i in order if options[i].gpus == options[smallest].gpus]
    many = [i for i in order if options[i].gpus == max(options[j].gpus for j in order)]
    picks = [smallest, largest, many[0], few[-1]]
    return list(dict.fromkeys(picks))[:3]


def next_run(
    question: Question,
    options: Sequence[Option],
    forecast: Forecast | None,
    done: Collection[int],
    worth: float = 0.01,
) -> int | None:
    """Index of the option to run next; None if enough is known.

    Args:
        question: The limits and the objective.
        options: All options.
        forecast: Forecast from the runs so far; None before the first.
        done: Indices of options that were run.
        worth: Least relative improvement that justifies another run.
    """
    for i in first_runs(options):
        if i not in done:
            return i
    if forecast is None:
        return None
    outlook = look(question, columns_of(question, options), forecast)
    best = best_of(question, outlook)
    here = likeliest_of(question, outlook) if best is None else best
    if here not in done:
        return here
    value = outlook.total_s if question.objective == "time" else outlook.cost
    lucky = np.exp(-_OPTIMISM * outlook.log_sd)
    may = (outlook.total_s * lucky <= outlook.limit_s) & (outlook.reached >= 0.5)
    hoped = np.where(may, value * lucky, np.inf)
    hoped[list(done)] = np.inf
    i = int(np.argmin(hoped))
    return i if hoped[i] < (1 - worth) * value[here] else None


#: Pass times that are equally likely, in spreads. (A rule for smooth functions would do with fewer points; a choice is not smooth.)
_POINTS = ndtri((np.arange(16) + 0.5) / 16)
#: How well a short run tells a pass time.
_TOLD_SD = 0.02
#: A run that saves less than this in the mean is not worth a user's time.
LEAST = 0.03


class _Supposed:
    """A forecast under which every option's pass time was seen, and came out ``z`` spreads off; None: as it was before."""

    def __init__(self, forecast: Forecast, columns: Columns) -> None:
        self._forecast = forecast
        self._pass_s, self._sd = forecast.pass_s(columns)
        self._told = np.minimum(self._sd, _TOLD_SD)
        self._open = np.sqrt(self._sd**2 - self._told**2)
        self._passes: Passes | None = None
        self.z: float | None = None

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        if self.z is None:
            return self._pass_s, self._sd
        return self._pass_s * np.exp(self.z * self._open), self._told

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        if self._passes is None:  # the one target there is
            self._passes = self._forecast.passes_to(target, batch)
        return self._passes

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return self._forecast.passes_for(epochs, batch)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``: not asked for here."""
        return None


def worth_running(plan: Plan, forecast: Forecast, least: float = LEAST) -> ShortRun | None:
    """The row whose short run saves most in the mean against the chosen one; None if that is less than ``least``.

    ``forecast`` is that of the plan. If no row is feasible, a run is worth its chance to find one that is. Not for
    the objective "metric", which a pass time does not decide.
    """
    question, options = plan.question, [row.option for row in plan.rows]
    if question.objective == "metric":
        return None
    columns = columns_of(question, options)
    supposed = _Supposed(forecast, columns)
    now = None if plan.chosen is None else _value(question, look(question, columns, supposed))[plan.chosen]
    saves, likely = np.zeros(len(options)), np.zeros(len(options))
    for z in _POINTS:
        supposed.z = float(z)
        seen = look(question, columns, supposed)
        gain = np.ones(len(options)) if now is None else 1 - _value(question, seen) / max(now, 1e-300)
        gain = np.where((seen.chance >= question.confidence) & (gain > 0), gain, 0.0)
        saves += gain / len(_POINTS)
        likely += (gain > 0) / len(_POINTS)
    if plan.chosen is not None:
        saves[plan.chosen] = 0.0  # that one would be run anyhow
    best = int(np.argmax(saves))
    if not saves[best] >= least:
        return None
    return ShortRun(row=best, saves=None if now is None else float(saves[best]), likely=float(likely[best]))


def _value(question: Question, outlook: Outlook) -> FloatArray:
    cost, total = expected(outlook)
    return np.nan_to_num(total if question.objective == "time" else cost, nan=np.inf, posinf=np.inf)
