"""How a job stands, in the shapes of the API."""

from __future__ import annotations

from coadapt.model import Forecast
from coadapt.scheduler import aged
from coadapt.wire.api import Interval


def as_interval(found: aged.Interval | None) -> Interval | None:
    """As the API has it."""
    return None if found is None else Interval(value=found.value, low=found.low, high=found.high)


def moments(said: Forecast, at: float) -> Interval:
    """A forecast, said at a moment, as moments."""
    return Interval(
        value=at + said.left_s,
        low=at + said.low_s,
        high=None if said.high_s is None else at + said.high_s,
    )
