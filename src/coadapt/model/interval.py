"""Intervals: a value with its 80% bounds, and the predictions of a job's end that are made of them.

``Interval`` is used from predictions to the API. ``Forecast`` is what a policy expects; it is logged so that it can be
compared with the actual end. ``Outlook`` is what a simulation of the live state finds.
"""

from __future__ import annotations

import math

import msgspec

from coadapt.model._base import Fact


class Interval(msgspec.Struct, frozen=True):
    """A value with its 80% interval: predictions carry it, and the API answers with it.

    Its fields are encoded as they are, also where they are None.
    """

    value: float
    low: float
    #: None: no upper bound. An infinite bound is stored as None, because JSON has no infinity.
    high: float | None = None

    def __post_init__(self) -> None:
        if self.high == math.inf:
            msgspec.structs.force_setattr(self, "high", None)

    @property
    def upper(self) -> float:
        """``high`` as a number: infinite where there is no upper bound."""
        return math.inf if self.high is None else self.high

    def shifted(self, by: float) -> Interval:
        """Returns the interval moved by an offset: seconds from a moment become moments."""
        return Interval(value=by + self.value, low=by + self.low, high=by + self.upper)

    def scaled(self, factor: float) -> Interval:
        """Returns the interval multiplied by a positive factor."""
        return Interval(value=self.value * factor, low=self.low * factor, high=self.upper * factor)


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


class Outlook(Fact, frozen=True):
    """Predicted start, end and cost of one job; times in unix seconds."""

    #: When it has, or gets, GPUs; None: not within what was simulated.
    starts_at: float | None = None
    finishes_at: float | None = None
    low: float | None = None
    #: None: it may take for ever, or longer than was simulated.
    high: float | None = None
    #: GPU-seconds that it will have had at its end, and its last batch size.
    gpu_s: float | None = None
    batch: int | None = None
    note: str = ""
    #: From the order of the queue, without the policy: there are too many jobs for a simulation.
    coarse: bool = False
    #: Its latest start by the jobs that are there now; None: not known, or not promised by this policy.
    latest_start_at: float | None = None
    #: Jobs without a known end, because of which no latest start can be promised.
    in_the_way: tuple[str, ...] = ()
    #: Of a job of unknown length with a time limit: upper end of the interval in which it is over.
    over_by: float | None = None
    #: It is stopped at its time limit before its predicted end.
    at_limit: bool = False

    @property
    def finishes(self) -> Interval | None:
        """The predicted end with its 80% interval; None: not within what was simulated."""
        if self.finishes_at is None:
            return None
        low = self.finishes_at if self.low is None else min(self.low, self.finishes_at)
        high = None if self.high is None else max(self.high, self.finishes_at)
        return Interval(value=self.finishes_at, low=low, high=high)
