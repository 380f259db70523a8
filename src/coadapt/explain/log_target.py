"""When the metric of a followed run reaches its target, by the course of its log so far (``coadapt watch --target``)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coadapt.prediction.remaining.eta_estimate import Pace, eta
from coadapt.prediction.remaining.learning_curve import MIN_POINTS, arrival
from coadapt.prediction.training_log import LogProgress, LogReader
from coadapt.spec.target import Target

#: Names that are listed where the target's metric is not in the log.
_NAMED = 6
_LEVELS = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForecast:
    """When a target is reached. Seconds are None where they cannot be told, which ``note`` explains."""

    target: str
    #: The last value of the metric.
    value: float | None = None
    reached: bool = False
    eta_s: float | None = None
    eta_low_s: float | None = None
    #: None: perhaps never.
    eta_high_s: float | None = None
    #: Chance that the metric stays short of the target.
    never: float | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return asdict(self)


def arrival_of(target: Target, reader: LogReader, state: LogProgress, pace: Pace) -> TargetForecast:
    """When the run reaches the target, by the points that the reader kept of its metric."""
    named = str(target)
    if not reader.course:
        known = ", ".join(list(reader.metrics)[:_NAMED])
        note = f"the log has no metric {target.name}" + (f"; it has {known}" if known else "")
        return TargetForecast(target=named, note=note)
    value = reader.course[-1][2]
    points = [(done, each) for done, _, each in reader.course]
    found = arrival(points, target.value, rising=target.higher_is_better)
    if found is None:
        note = f"{len(points)} values of {target.name}: too few to tell when it is reached, which takes {MIN_POINTS}"
        return TargetForecast(target=named, value=value, note=note)
    if found.family == "reached":
        return TargetForecast(
            target=named, value=value, reached=True, eta_s=0.0, eta_low_s=0.0, eta_high_s=0.0, never=0.0
        )
    if not found.work or found.never > 0.5:
        note = f"{target.name} does not reach {target.value:g} on its present course"
        return TargetForecast(target=named, value=value, never=found.never, note=note)
    order = np.argsort(found.work)
    work, weight = np.array(found.work)[order], np.array(found.weight)[order]
    at = np.interp(_LEVELS, (np.cumsum(weight) - 0.5 * weight) / weight.sum(), work)
    low, middle, high = (eta(pace, max(float(each) - state.done, 0.0)) for each in at)
    if low is None or middle is None or high is None:
        return TargetForecast(
            target=named, value=value, never=found.never, note="too little is done to tell the pace"
        )
    return TargetForecast(
        target=named,
        value=value,
        eta_s=middle.value,
        eta_low_s=min(low.low, middle.low),
        eta_high_s=high.upper if found.never < 1 - _LEVELS[-1] and math.isfinite(high.upper) else None,
        never=found.never,
    )
