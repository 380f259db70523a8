"""Which short run would pay most before anything is launched: the value of knowing one option's pass time.

A plan from past runs chooses among what they tell. An option that nobody ran near may be far cheaper and yet not be the choice, because
nobody can be sure of it. A short run shows its pass time. Supposed it does, for a few pass times that stand for what is possible: the
option would be chosen where it then holds the limits with the confidence asked for, and would save what it is then better
than the present choice. The mean of that over what is possible is what the run is worth (expected value of information, Howard 1966).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from coadapt.configure.decide import expected
from coadapt.configure.outlook import Columns, Forecast, Outlook, Passes, columns_of, look
from coadapt.configure.problem import Plan, Question, ShortRun
from coadapt.predict._base import FloatArray

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
    """The row whose short run saves most in the mean against the one chosen, if that is at least ``least``; ``forecast``: that of the plan.

    Where no row holds the limits a run is worth its chance to find one that does. Not for the best metric: how
    that follows from a pass time is no matter of choosing or not.
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
