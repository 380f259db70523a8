"""How passes over the data become epochs of work, by batch size: what larger batches cost in examples.

To reach the same metric at batch B takes more examples than at the smallest batch M0 (McCandlish et al. 2018: in proportion
to 1 + B/phi, phi the gradient noise scale, which grows while training). With u epochs of work (= passes at M0):

    passes(B, u) = u + (B/M0 - 1)^r c u^q                       ``PowerLaw``: learned from metrics alone
    passes(B, u) = integral over u of (phi(u) + B)/(phi(u) + M0)  ``ByNoise``: the noise scale was measured

q < 1 says that phi grows, r < 1 that large batches cost less than a constant phi foretells. c, q and r are those under which all runs, whatever their batch size, lie best on one
curve of metric over work; c = 0 (batch size does not matter) is among what is tried.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from coadapt.model import Fact
from coadapt.predict._base import FloatArray
from coadapt.predict.isotonic import Shape, averaged, shaped
from coadapt.predict.noise import carried
from coadapt.predict.samples import MetricTable, metric_columns

#: Extra passes at the largest batch size and the last epoch, as a share, and exponents that are tried first.
_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 6.0, 12.0)
_EXPONENTS = (0.4, 0.7, 1.0)
_POWERS = (0.7, 0.85, 1.0)
_ROUNDS, _NEWTON = 6, 12
#: Metrics further from the one asked about than this share of their range count as so far.
_WINDOW = 0.1
#: Unless fewer rows than these are left, or than two for each batch size: three numbers are not told by less.
_ENOUGH = 12


class Work(Protocol):
    """Passes and work, both ways, for arrays of equal length."""

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """Passes at ``batch`` that do so many epochs of work."""

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """Epochs of work that so many passes at ``batch`` do."""


class PowerLaw(Fact, frozen=True):
    """``passes = work + (batch / initial - 1)^r c work^q``."""

    initial: float
    c: float = 0.0
    q: float = 1.0
    r: float = 1.0

    def passes(self, batch: FloatArray, work: FloatArray) -> FloatArray:
        """See ``Work``."""
        return np.asarray(work + self._extra(batch) * work**self.q)

    def work(self, batch: FloatArray, passes: FloatArray) -> FloatArray:
        """See ``Work``: in ln work the equation is convex, so that Newton's steps from above do not overshoot."""
        found = np.asarray(passes, dtype=np.float64)
        if self.c == 0:
            return found
        extra, log_passes = self._extra(batch), np.log(passes)
        log_work = log_passes
        for _ in range(_NEWTON):
            work = np.exp(log_work)
            more = extra * work**self.q
            total = work + more
            log_work = log_work - (np.log(total) - log_passes) * total / (work + self.q * more + 1e-300)
            log_work = np.minimum(log_work, log_passes)
        return np.asarray(np.exp(log_work))

    def _extra(self, batch: FloatArray) -> FloatArray:
        return np.asarray(self.c * np.maximum(batch / self.initial - 1, 0.0) ** self.r)


class ByNoise(Fact, frozen=True):
    """From the noise scale at each epoch of work, measured at M0 and carried to other batch sizes (``noise``); the last one holds beyond."""

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
        there = np.exp(carried(np.log(phi), self.initial, max(batch, self.initial)))
        rate = (there + max(batch, self.initial)) / (there + self.initial)
        return knots, np.concatenate([[0.0], np.cumsum(np.diff(knots) * rate)])


def fit(table: MetricTable, near: float | None = None) -> PowerLaw:
    """The law under which the samples lie best on one curve; c = 0 for a single batch size.

    ``near``: the metric that will be asked about. Curves need to meet there, and what happens far from it (the first
    epochs above all, which differ most between batch sizes) should not count.
    """
    rows = metric_columns(table)
    initial = float(rows[:, 0].min())
    if len(np.unique(rows[:, 0])) < 2:
        return PowerLaw(initial=initial)
    if near is not None:
        enough = min(max(_ENOUGH, 2 * len(np.unique(rows[:, 0]))), len(rows))
        apart = np.sort(np.abs(rows[:, 2] - near))
        width = max(_WINDOW * float(np.ptp(rows[:, 2])), float(apart[enough - 1]))
        rows[:, 2] = np.clip(rows[:, 2], near - width, near + width)
    shape: Shape = "rising" if table.higher_is_better else "falling"
    scale, longest = float(rows[:, 0].max()) / initial - 1, float(rows[:, 1].max())

    def tried(share: float, q: float, r: float) -> _Tried:
        law = PowerLaw(initial=initial, c=share * longest ** (1 - q) / scale**r, q=q, r=r)
        return _misfit(rows, law, shape), (share, q, r), law

    best = tried(0.0, 1.0, 1.0)
    for share in _SHARES[1:]:
        for q in _EXPONENTS:
            for r in _POWERS:
                best = min(best, tried(share, q, r), key=lambda one: one[0])
    step = 0.3
    for _ in range(_ROUNDS if best[1][0] else 0):
        share, q, r = best[1]
        around = [tried(share * float(np.exp(way * step)), q, r) for way in (-1, 1)]
        best = min([best, *around], key=lambda one: one[0])
        step /= 2
    return best[2]


#: Misfit, (share, q, r), and the law.
_Tried = tuple[float, tuple[float, float, float], PowerLaw]


def _misfit(rows: FloatArray, law: PowerLaw, shape: Shape) -> float:
    """Squared error of one isotonic curve through all rows, each run at its work; rows at the same work differ from their mean, too."""
    done = law.work(rows[:, 0], rows[:, 1])
    at, mean, count = averaged(done, rows[:, 2])
    curve = shaped(mean, count, shape)
    return float(((rows[:, 2] - curve[np.searchsorted(at, done)]) ** 2).sum())


def _linear(x: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Linear between knots, and on beyond the last one."""
    slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    return np.asarray(
        np.where(x > knots[-1], values[-1] + slope * (x - knots[-1]), np.interp(x, knots, values))
    )
