"""Intervals: a value with its 80% bounds, and the forecast of a job's end as the log keeps it.

``Interval`` is used from predictions to the API. ``Forecast`` is logged so that it can be compared with the actual
end.
"""

from __future__ import annotations

import msgspec

from coadapt.model._base import Fact


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its 80% interval; ``high`` None: no upper bound.

    Part of the API's answers: its fields are encoded as they are, also where they are None.
    """

    value: float
    low: float
    high: float | None = None

    def shifted(self, by: float) -> Interval:
        """Returns the interval moved by an offset: seconds from a moment become moments."""
        high = None if self.high is None else by + self.high
        return Interval(value=by + self.value, low=by + self.low, high=high)


class Forecast(Fact, frozen=True):
    """Seconds until a job ends, from the moment it is said, with its 80% interval."""

    left_s: float
    low_s: float
    #: None: it may never end.
    high_s: float | None
    #: What it rests on: "declared", "course", "pool", "attained", or the name of the tool that said it.
    method: str = ""
    #: Share of the job's work that was done; None where that is not known.
    done: float | None = None

    @property
    def left(self) -> Interval:
        """Seconds until the end, from the moment it was said."""
        return Interval(value=self.left_s, low=self.low_s, high=self.high_s)
