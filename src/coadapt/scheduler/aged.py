"""A forecast some time later: what it says about the time left, given that the job has not ended meanwhile.

The time to the end, T, is log-normal on either side of its median, by its 80% interval:

    P(T <= t) = Phi(log(t / median) / s)        s = log(high / median) / 1.28 above the median, log(median / low) / 1.28 below

After e seconds P(T <= t | T > e) = (F(t) - F(e)) / (1 - F(e)). A job that is late by all that was said goes on for a share
of what it has taken, as the far tail of the same curve does.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from coadapt.model import Fact

_NORMAL = NormalDist()
_Z80 = _NORMAL.inv_cdf(0.9)
#: Spread where the upper end is open, and the least there is.
_OPEN, _LEAST = 3.0, 1e-6
#: Beyond this probability the curve is not asked any more.
_FAR = 1 - 1e-6


class Interval(Fact, frozen=True):
    """A value and the range it is in with 80% probability; ``high`` None: it may be for ever."""

    value: float
    low: float
    high: float | None = None


class TimeLeft:
    """Seconds until a job ends: as said, and ``elapsed_s`` later."""

    __slots__ = ("_above", "_below", "_elapsed_s", "_gone", "_median_s", "_open", "_stretch")

    def __init__(self, said: Interval, elapsed_s: float) -> None:
        self._median_s = max(said.value, 1e-3)
        self._open = said.high is None
        high = (
            _OPEN if said.high is None else math.log(max(said.high, self._median_s) / self._median_s) / _Z80
        )
        low = math.log(self._median_s / min(max(said.low, 1e-6), self._median_s)) / _Z80
        self._above, self._below = max(high, _LEAST), max(low, _LEAST)
        self._elapsed_s = max(elapsed_s, 0.0)
        #: Chance that it should have ended by now; and by how much it is beyond the part of the curve that is asked.
        self._gone, self._stretch = self._by(self._elapsed_s), 1.0
        if self._gone > _FAR:
            self._gone, self._stretch = _FAR, self._elapsed_s / self._at(_FAR)

    def _by(self, seconds: float) -> float:
        """Chance of an end within so many seconds from when it was said."""
        if seconds <= 0:
            return 0.0
        apart = math.log(seconds / self._median_s)
        return _NORMAL.cdf(apart / (self._above if apart > 0 else self._below))

    def _at(self, chance: float) -> float:
        z = _NORMAL.inv_cdf(min(max(chance, 1e-12), 1 - 1e-12))
        return self._median_s * math.exp(z * (self._above if z > 0 else self._below))

    def quantile(self, level: float) -> float:
        """Seconds from now within which it ends with this probability."""
        found = self._at(self._gone + level * (1 - self._gone)) * self._stretch
        return max(found - self._elapsed_s, 0.0)

    @property
    def interval(self) -> Interval:
        """Seconds from now: median and 80% interval."""
        high = None if self._open else self.quantile(0.9)
        return Interval(value=self.quantile(0.5), low=self.quantile(0.1), high=high)

    def longer_than(self, seconds: float) -> float:
        """Chance that it takes longer than so many seconds from now."""
        if seconds <= 0:
            return 1.0
        by = self._by((self._elapsed_s + seconds) / self._stretch)
        return min(max((1 - by) / (1 - self._gone), 0.0), 1.0)
