"""Time that is not steps: set-up, data loading of the first pass, validation, checkpoints, and what else is reported.

Each kind is predicted by the median of its durations. One slow file system in twenty makes a duration ten
times as long, so spread is taken from the median of absolute deviations, in logarithms, blended with what is
usual while there are few. A kind that was never reported is not taken for nothing: it is named as unknown.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping

import numpy as np

from coadapt.model import Fact, Measurement
from coadapt.predict._base import Estimate, relative_interval, t_quantile

KINDS = ("setup", "first_pass", "validation", "checkpoint")
#: Durations kept of a kind: evenly thinned beyond, which keeps the median and the spread.
MAX_DURATIONS = 64
#: Shortest duration that counts: logarithms need one.
LEAST_S = 1e-3
#: Scatter of log durations before there are several, worth so many.
_SCATTER, _ASSUMED = 0.4, 2
#: Standard deviation of normal values by the median of their absolute deviations.
_MAD = 1.4826
#: Degrees of freedom at which Student's distribution is the normal one.
_NORMAL = 1e6


class OverheadTable(Fact, frozen=True):
    """Durations by kind, both in order."""

    durations_s: tuple[tuple[str, tuple[float, ...]], ...] = ()


class Overhead(Fact, frozen=True):
    """One kind: median, scatter of logarithms, and how many durations are behind them."""

    kind: str
    median_s: float
    scatter: float
    count: int


class OverheadParams(Fact, frozen=True):
    """Every kind that was reported."""

    kinds: tuple[Overhead, ...]

    def of(self, kind: str) -> Overhead | None:
        """One kind; None if it was never reported."""
        return next((known for known in self.kinds if known.kind == kind), None)


def observe(table: OverheadTable, measurement: Measurement) -> OverheadTable:
    """The table with the reported overheads; the same object if there are none that are durations."""
    new = {kind: s for kind, s in measurement.overheads_s.items() if math.isfinite(s) and s >= 0}
    if not new:
        return table
    known = dict(table.durations_s)
    for kind, seconds in new.items():
        durations = list(known.get(kind, ()))
        insort(durations, max(seconds, LEAST_S))
        known[kind] = tuple(durations if len(durations) <= MAX_DURATIONS else durations[::2])
    return OverheadTable(durations_s=tuple(sorted(known.items())))


def fit(table: OverheadTable, prior: OverheadParams | None = None) -> OverheadParams | None:
    """Every kind reported; kinds of ``prior`` where this job has reported none."""
    own = {kind: _overhead(kind, durations) for kind, durations in table.durations_s}
    before = {known.kind: known for known in prior.kinds} if prior is not None else {}
    merged = {**before, **own}
    return OverheadParams(kinds=tuple(merged[kind] for kind in sorted(merged))) if merged else None


def _overhead(kind: str, durations: tuple[float, ...]) -> Overhead:
    logs = np.log(durations)
    middle, count = float(np.median(logs)), len(logs)
    spread = _MAD * float(np.median(np.abs(logs - middle)))
    scatter = math.sqrt((count * spread**2 + _ASSUMED * _SCATTER**2) / (count + _ASSUMED))
    return Overhead(kind=kind, median_s=math.exp(middle), scatter=scatter, count=count)


def predict(params: OverheadParams, x: str) -> Estimate | None:
    """Seconds of the next occurrence of a kind; None if it was never reported."""
    known = params.of(x)
    if known is None:
        return None
    # the median of n normal values strays pi/2 times as much as their mean
    width = known.scatter * math.sqrt(1 + math.pi / 2 / known.count)
    return relative_interval(known.median_s, width * t_quantile(known.count - 1 + _ASSUMED))


def total(params: OverheadParams, occurrences: Mapping[str, float]) -> Estimate:
    """Seconds of so many occurrences of each kind together; kinds never reported count nothing (``unknown``).

    Single occurrences even out; that the median is not the true one does not.
    """
    value, variance = 0.0, 0.0
    for kind, times in occurrences.items():
        known = params.of(kind)
        if known is None or times <= 0:
            continue
        value += times * known.median_s
        relative = known.scatter**2 * (1 / times + math.pi / 2 / known.count)
        variance += (times * known.median_s) ** 2 * relative
    half = math.sqrt(variance) * t_quantile(_NORMAL)
    return Estimate(value=value, low=max(value - half, 0.0), high=value + half)


def unknown(params: OverheadParams | None, kinds: tuple[str, ...] = KINDS) -> tuple[str, ...]:
    """Kinds nothing is known about, to be said beside a total."""
    return tuple(kind for kind in kinds if params is None or params.of(kind) is None)
