"""Predicted against actual: how long each job was said to take when first asked, and how long it took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coadapt.wire.api import PredictionLine

SIDE, _EDGE = 320.0, 34.0
#: Durations that axes may begin and end with.
_TICKS = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)


class Judged(NamedTuple):
    """One job that came to the end that was predicted; seconds since it was submitted."""

    job: str
    predicted_s: float
    low_s: float
    high_s: float | None
    actual_s: float

    @property
    def within(self) -> bool:
        """Whether what came lies in the range that was said."""
        return self.low_s <= self.actual_s and (self.high_s is None or self.actual_s <= self.high_s)

    @property
    def error(self) -> float:
        """Predicted over actual, less one."""
        return self.predicted_s / self.actual_s - 1


class Plot(NamedTuple):
    """Where things are drawn."""

    points: list[tuple[float, float, float, float, Judged]]
    ticks: list[tuple[float, int]]


def judged(line: PredictionLine, submitted_at: float | None) -> Judged | None:
    """None where nothing can be said yet."""
    if line.actual is None or submitted_at is None or line.actual <= submitted_at:
        return None
    said, high = line.predicted, line.predicted.high
    return Judged(
        job=line.job,
        predicted_s=said.value - submitted_at,
        low_s=said.low - submitted_at,
        high_s=None if high is None else high - submitted_at,
        actual_s=line.actual - submitted_at,
    )


def scatter(rows: Sequence[Judged]) -> Plot | None:
    """x, y, and the ends of the range, for each job, on logarithmic axes that both are alike."""
    if not rows:
        return None
    values = [max(value, 1.0) for row in rows for value in (row.predicted_s, row.actual_s)]
    low = max((tick for tick in _TICKS if tick <= min(values)), default=_TICKS[0])
    high = min((tick for tick in _TICKS if tick >= max(values)), default=max(values))
    high = max(high, 10 * low)

    def place(seconds: float) -> float:
        share = math.log(max(seconds, 1.0) / low) / math.log(high / low)
        return _EDGE + min(max(share, 0.0), 1.0) * (SIDE - 2 * _EDGE)

    points = [
        (
            place(row.actual_s),
            SIDE - place(row.predicted_s),
            SIDE - place(row.low_s),
            SIDE - place(high if row.high_s is None else row.high_s),
            row,
        )
        for row in rows
    ]
    return Plot(points, [(place(tick), tick) for tick in _TICKS if low <= tick <= high])
