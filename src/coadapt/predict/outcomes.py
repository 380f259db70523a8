"""How ETAs turned out, and what that says about the next one: its median, and an interval that holds.

A predictor states seconds and how far off it may be, a deviation of the logarithm. When a run has ended, what became of
its ETAs is kept as errors in units of that deviation. The next ETA is corrected by the quantiles of these errors, those
at similar shares of a run counting most (conformal prediction with weights, Tibshirani et al. 2019); normal ones
stand in while there are few. So a bias that all runs have goes, whatever its cause (reports that come late), and
nothing is tuned to one scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.predict._base import COVERAGE, Estimate, FloatArray

#: Outcomes that count, the latest; over which difference of log(share / (1 - share)) they matter; and how many
#: stand for the deviation as it was stated.
MOST, _KIN, _STATED = 300, 0.7, 8
#: Beyond a factor of twenty an interval says nothing more.
_WIDEST = 3.0


class Outcome(Fact, frozen=True):
    """What became of an ETA: share of the work that was done, and log(real / predicted) in deviations as stated."""

    share: float
    error: float


def outcome(share: float, predicted_s: float, deviation: float, real_s: float) -> Outcome | None:
    """To be kept when a run has ended; None where there was nothing to predict, or no number."""
    known = (share, predicted_s, deviation, real_s)
    if not all(map(math.isfinite, known)) or min(predicted_s, deviation, real_s) <= 0:
        return None
    return Outcome(share=share, error=math.log(real_s / predicted_s) / deviation)


def calibrated(seconds: float, deviation: float, share: float, past: Sequence[Outcome] = ()) -> Estimate:
    """An ETA as it turned out for runs that have ended: its median and the interval that held 80% of them.

    ``deviation``: of the logarithm, as far as the predictor knows; ``share``: of the work done.
    """
    if not (seconds >= 0 and deviation >= 0 and math.isfinite(seconds + deviation)):
        raise InputError(f"an ETA of {seconds} s, deviation {deviation}: both must be numbers, not negative")
    edge = (1 - COVERAGE) / 2
    errors, weights = ndtri((np.arange(_STATED) + 0.5) / _STATED), np.ones(_STATED)
    latest = past[-MOST:]
    if latest:
        apart = np.abs(_logit(np.array([each.share for each in latest])) - _logit(np.array([share])))
        errors = np.concatenate([errors, [each.error for each in latest]])
        weights = np.concatenate([weights, np.exp(-apart / _KIN)])
    order = np.argsort(errors, kind="stable")
    reached = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    logs = deviation * np.interp((edge, 0.5, 1 - edge), reached, errors[order])
    low, value, high = (seconds * np.exp(np.clip(logs, -_WIDEST, _WIDEST))).tolist()
    return Estimate(value=value, low=low, high=high)


def _logit(share: FloatArray) -> FloatArray:
    inside = np.clip(share, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(inside / (1 - inside)))
