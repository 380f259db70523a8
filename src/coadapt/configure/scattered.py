"""Forecasts of a metric that differs from run to run and from pass to pass, by so much: few short runs hug their own curve, the next run will not.

The metric's own spread grows by the scatter. The number of passes does, too: by as many as are needed more if the target is higher by the scatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coadapt.configure.outlook import Columns, Forecast, Passes
from coadapt.predict._base import FloatArray

#: A run's metrics over its passes.
Curve = Sequence[tuple[float, float]]


class ScatteredForecast:
    """Implements ``Forecast``. ``scatter``: standard deviation of the metric between runs alike."""

    def __init__(self, plain: Forecast, scatter: float, *, higher_is_better: bool) -> None:
        self._plain, self._scatter = plain, scatter
        self._sign = 1.0 if higher_is_better else -1.0

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """See ``Forecast``."""
        return self._plain.pass_s(columns)

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """See ``Forecast``."""
        found = self._plain.passes_to(target, batch)
        if self._scatter <= 0:
            return found
        harder = self._plain.passes_to(target + self._sign * self._scatter, batch)
        later = np.log(np.maximum(harder.needed / found.needed, 1.0))
        return Passes(found.needed, np.hypot(found.log_sd, later), found.reached)

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """See ``Forecast``."""
        return self._plain.passes_for(epochs, batch)

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """See ``Forecast``."""
        found = self._plain.metric_after(batch, passes)
        return None if found is None else (found[0], np.hypot(found[1], self._scatter))


def scatter_of(runs: Iterable[tuple[int, Curve]]) -> float:
    """Of (batch, curve): how far a pass is off the line through its neighbours, and two runs of a batch size off each other, late in the rise.

    For independent values of variance v the first differs by a - 2b + c, of variance 6 v, the second by a - b, of variance 2 v.
    """
    known = [(batch, dict(curve)) for batch, curve in runs if curve]
    values = [value for _, curve in known for value in curve.values()]
    if not values:
        return 0.0
    middle = (min(values) + max(values)) / 2
    ends = [value for _, curve in known for _, value in sorted(curve.items())[-1:]]
    rising = float(np.mean(ends)) >= middle
    terms = []
    for at, (batch, curve) in enumerate(known):
        late = sorted((p, v) for p, v in curve.items() if (v >= middle) == rising)
        values_late = np.array([v for _, v in late])
        if len(late) > 2:
            terms += list((values_late[:-2] - 2 * values_late[1:-1] + values_late[2:]) ** 2 / 6)
        for other_batch, other in known[at + 1 :]:
            if other_batch == batch:
                terms += [(v - other[p]) ** 2 / 2 for p, v in late if p in other]
    return float(np.sqrt(np.mean(terms))) if terms else 0.0
