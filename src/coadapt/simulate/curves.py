"""Measured training curves of one task: one table per total batch size, one row per epoch of work.

Between two measured batch sizes every column is linear in the batch size (gradient norm and variance
separately, as in Pollux' simulator); outside them the nearest one stands in. An epoch's end is
the smallest progress any of the tables shows for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class EpochRow(NamedTuple):
    """State at the end of an epoch of work."""

    progress: float
    iteration: float
    metric: float
    grad_sqr: float
    grad_var: float


_ITERATION, _METRIC, _SQR, _VAR = 1, 2, 3, 4


class Curves:
    """All curves of a task, by total batch size."""

    def __init__(self, by_batch: Mapping[int, Sequence[EpochRow]]) -> None:
        self.batches = sorted(by_batch)
        self._rows = [list(by_batch[batch]) for batch in self.batches]
        self.epochs = min(map(len, self._rows))
        self.marks = tuple(min(rows[at].progress for rows in self._rows) for at in range(self.epochs))
        self._kept: dict[tuple[int, int], tuple[float, float]] = {}

    @property
    def data_size(self) -> int:
        """Examples in the data: what the first epoch at M0 went through."""
        return round(self._rows[0][0].progress * self.batches[0])

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """(grad_sqr, grad_var) of that epoch."""
        key = (batch, epoch)
        found = self._kept.get(key)
        if found is None:
            found = (self._linear(batch, epoch, _SQR), self._linear(batch, epoch, _VAR))
            self._kept[key] = found
        return found

    def iteration(self, batch: int, epoch: int) -> float:
        """Optimizer steps at this batch size until the end of that epoch."""
        return self._linear(batch, epoch, _ITERATION)

    def metric(self, batch: int, epoch: int) -> float:
        """Validation metric at the end of that epoch."""
        return self._linear(batch, epoch, _METRIC)

    def _linear(self, batch: int, epoch: int, column: int) -> float:
        epoch = min(epoch, self.epochs - 1)
        right = bisect_left(self.batches, batch)
        if right == len(self.batches):
            return self._rows[-1][epoch][column]
        upper = self._rows[right][epoch][column]
        if right == 0 or self.batches[right] == batch:
            return upper
        below, above = self.batches[right - 1], self.batches[right]
        lower = self._rows[right - 1][epoch][column]
        return lower + (upper - lower) * (batch - below) / (above - below)
