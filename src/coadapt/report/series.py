"""A step function over time, kept as means over at most ``limit`` equal bins.

A log of millions of changes must become a chart of some hundred points, in one pass and without being
kept. The function's integral is collected per bin; when time runs past the last bin, neighbours are
merged and the width doubles. So a series costs O(1) per change, a fixed amount of memory, and between
``limit / 2`` and ``limit`` points once it is long enough; its total integral stays exact.
"""

from __future__ import annotations

from typing import NamedTuple

LIMIT = 1000
_FIRST_WIDTH_S = 1 / 64


class Binned(NamedTuple):
    """Means over equal bins from ``start``; None where nothing is known. The last bin may be cut short."""

    start: float
    width_s: float
    values: list[float | None]


class StepSeries:
    """``set`` says what the value is from now on; ``add`` adds an amount over a stretch of the past."""

    __slots__ = ("_at", "_bins", "_edge", "_last", "_width", "limit", "origin", "total", "value")

    def __init__(self, origin: float = 0.0, *, limit: int = LIMIT) -> None:
        self.limit = limit
        self.value = 0.0
        #: Integral over all time, exact.
        self.total = 0.0
        self.start(origin)

    def start(self, origin: float) -> None:
        """Sets the time at which the series begins; only before the first change."""
        self.origin = self._last = origin
        self._width = _FIRST_WIDTH_S
        self._bins = [0.0] * self.limit
        #: The bin that ``_last`` lies in, and its end.
        self._at, self._edge = 0, origin + self._width

    def set(self, at: float, value: float) -> None:
        """Sets the value of the function from ``at`` on."""
        last = self._last
        if last < at < self._edge:  # nearly always: still in the same bin
            area = self.value * (at - last)
            self._bins[self._at] += area
            self.total += area
            self._last = at
        elif at > last:
            self.advance(at)
        self.value = value

    def advance(self, at: float) -> None:
        """Adds the present value up to ``at``."""
        last = self._last
        if at <= last:
            return
        self._last = at
        if self.value:
            self.add(last, at, self.value)
        elif at - self.origin >= self._width * self.limit:
            self._widen(at)
        self._at = int((at - self.origin) / self._width)
        self._edge = self.origin + (self._at + 1) * self._width

    def add(self, start: float, end: float, amount: float) -> None:
        """Raises the function by ``amount`` between ``start`` and ``end``."""
        if end - self.origin >= self._width * self.limit:
            self._widen(end)
        self.total += amount * (end - start)
        bins, width = self._bins, self._width
        low, high = start - self.origin, end - self.origin
        first, last = int(low / width), int(high / width)
        if first == last:
            bins[first] += amount * (high - low)
            return
        bins[first] += amount * ((first + 1) * width - low)
        for index in range(first + 1, last):
            bins[index] += amount * width
        bins[last] += amount * (high - last * width)

    def _widen(self, at: float) -> None:
        while at - self.origin >= self._width * self.limit:
            bins = self._bins
            if len(bins) % 2:
                bins.append(0.0)
            merged = [bins[i] + bins[i + 1] for i in range(0, len(bins), 2)]
            self._bins = merged + [0.0] * (self.limit - len(merged))
            self._width *= 2
        self._at = int((self._last - self.origin) / self._width)
        self._edge = self.origin + (self._at + 1) * self._width

    def binned(self, weight: StepSeries | None = None) -> Binned:
        """The function's mean in every bin up to now; with ``weight`` the ratio of both integrals.

        A series and its weight are changed together, so that their bins are the same.
        """
        span = self._last - self.origin
        used = min(self.limit, int(span / self._width) + 1)
        if used > 1 and span <= (used - 1) * self._width:
            used -= 1  # now is the very edge of a bin that has no extent yet
        values: list[float | None] = []
        for index in range(used):
            extent = min(self._width, span - index * self._width) if weight is None else weight._bins[index]
            values.append(self._bins[index] / extent if extent > 0 else None)
        return Binned(self.origin, self._width, values)
