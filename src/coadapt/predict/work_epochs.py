"""How passes over the data become epochs of work, by batch size: what larger batches cost in examples.

To reach the same metric at batch B takes more examples than at the smallest batch M0 (McCandlish et al. 2018: in proportion
to 1 + B/phi, phi the gradient noise scale, which grows while training). With u epochs of work (= passes at M0):

    passes(B, u) = u + (B/M0 - 1) c u^q                         ``PowerLaw``: learned from metrics alone
    passes(B, u) = integral over u of (phi(u) + B)/(phi(u) + M0)  ``ByNoise``: the noise scale was measured

q < 1 says that phi grows. c and q are those under which all runs, whatever their batch size, lie best on one isotonic
curve of metric over work; c = 0 (batch size does not matter) is among what is tried.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from coadapt.model import Fact
from coadapt.predict._base import FloatArray
from coadapt.predict.isotonic import Shape, averaged, shaped
from coadapt.predict.samples import MetricTable, metric_columns

#: Extra passes at the largest batch size and the last epoch, as a share, and exponents that are tried first.
_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 6.0, 12.0)
_EXPONENTS = (0.1, 0.3, 0.5, 0.7, 1.0)
_HALVINGS = 40


class Work(Protocol):
    """Passes and work, both ways, for arrays of equal length."""

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """Passes at ``batch`` that do so many epochs of work."""

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """Epochs of work that so many passes at ``batch`` do."""


class PowerLaw(Fact, frozen=True):
    """``passes = work + (batch / initial - 1) c work^q``."""

    initial: float
    c: float = 0.0
    q: float = 1.0

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """See ``Work``."""
        extra = np.maximum(batch / self.initial - 1, 0.0) * self.c
        return np.asarray(work + extra * work**self.q)

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """See ``Work``: rising in work, so halving finds it."""
        low, high = np.zeros_like(passes), np.asarray(passes, dtype=np.float64)
        for _ in range(_HALVINGS if self.c > 0 else 0):
            middle = (low + high) / 2
            over = self.passes(batch, middle) > passes
            low, high = np.where(over, low, middle), np.where(over, middle, high)
        return high


class ByNoise(Fact, frozen=True):
    """From the noise scale at each epoch of work; the last one holds beyond."""

    initial: float
    epochs: tuple[float, ...]
    phi: tuple[float, ...]

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """See ``Work``."""
        at, per_batch = np.unique(batch, return_inverse=True)
        found = np.empty(len(batch))
        for i, size in enumerate(at):
            mine = per_batch == i
            knots, sums = self._sums(float(size))
            found[mine] = _linear(work[mine], knots, sums)
        return found

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """See ``Work``."""
        at, per_batch = np.unique(batch, return_inverse=True)
        found = np.empty(len(batch))
        for i, size in enumerate(at):
            mine = per_batch == i
            knots, sums = self._sums(float(size))
            found[mine] = _linear(passes[mine], sums, knots)
        return found

    def _sums(self, batch: float) -> tuple[FloatArray, FloatArray]:
        knots, phi = np.concatenate([[0.0], self.epochs]), np.array(self.phi)
        rate = (phi + max(batch, self.initial)) / (phi + self.initial)
        return knots, np.concatenate([[0.0], np.cumsum(np.diff(knots) * rate)])


def fit(table: MetricTable) -> PowerLaw:
    """The law under which the samples lie best on one curve; c = 0 for a single batch size."""
    rows = metric_columns(table)
    initial = float(rows[:, 0].min())
    law = PowerLaw(initial=initial)
    if len(np.unique(rows[:, 0])) < 2:
        return law
    shape: Shape = "rising" if table.higher_is_better else "falling"
    scale, longest = float(rows[:, 0].max()) / initial - 1, float(rows[:, 1].max())

    def tried(share: float, q: float) -> tuple[float, PowerLaw]:
        c = share * longest ** (1 - q) / scale
        candidate = PowerLaw(initial=initial, c=c, q=q)
        return _misfit(rows, candidate, shape), candidate

    options = {(share, q): tried(share, q) for share in _SHARES for q in (_EXPONENTS if share else (1.0,))}
    share, q = min(options, key=lambda key: options[key][0])
    step_share, step_q = 1.4, 0.15
    best = options[share, q]
    for _ in range(6 if share else 0):
        around = [(share * f, q + d) for f in (1 / step_share, 1, step_share) for d in (-step_q, 0, step_q)]
        found = {key: tried(*key) for key in around if 0.0 <= key[1] <= 1.2}
        share, q = min(found, key=lambda key: found[key][0])
        best = min(best, found[share, q], key=lambda pair: pair[0])
        step_share, step_q = step_share**0.6, step_q * 0.6
    return best[1]


def _misfit(rows: FloatArray, law: PowerLaw, shape: Shape) -> float:
    """Squared error of one isotonic curve through all rows, each run at its work."""
    at, mean, count = averaged(law.work(rows[:, 0], rows[:, 1]), rows[:, 2])
    return float(count @ (mean - shaped(mean, count, shape)) ** 2)


def _linear(x: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Linear between knots, and on beyond the last one."""
    slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    return np.asarray(np.where(x > knots[-1], values[-1] + slope * (x - knots[-1]), np.interp(x, knots, values)))
