"""Passes to a target from runs that stopped when they reached it.

Such a run says when it reached the target, and little about curves: each run has a schedule of learning rates of its own
length, so that curves of different batch sizes do not lie on one another. Therefore the crossings themselves are fitted
(McCandlish et al. 2018: passes grow with batch size as a hyperbola):

    ln passes(B) = ln E0 + ln(1 + B / Bn) + process(ln B) + offset(B) + noise

E0 is free; Bn is averaged over, with a wide prior above the batch sizes of the samples. The process (Gaussian, of
amplitude ``_AMPLITUDE`` and length ``_LENGTH``) follows what the hyperbola does not. Each batch size has an offset
(``_OFFSET``: another author tuned it, another grid of evaluations). The noise is that between equal runs, estimated from
repetitions, and the distance of evaluations: a run that is evaluated every four passes may have reached its target up to
four passes earlier. The three constants were chosen on MLPerf Training, leaving out batch sizes (``benchmarks.realworld``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.sample_table import MetricSample, MetricTable

_AMPLITUDE, _LENGTH, _OFFSET = 0.1, 0.6, 0.04
#: Standard deviation of ln passes between equal runs where repetitions do not tell, and how many repetitions it counts as.
_RUN_SD, _RUN_WEIGHT = 0.04, 4.0
#: ln Bn above the mean of ln B of the samples, its spread, and at how many of its standard deviations it is tried.
_ABOVE, _SPREAD, _GRID = 2.0, 2.0, np.linspace(-2.5, 2.5, 41)
#: Chance that a run reaches the target where nothing is known of batch sizes like it; a batch size e times as large is like it by 1/e.
_USUALLY, _ALIKE = 0.97, 1.0
#: Of the runs that reach the target, so many stop there: else they are curves, which tell more than their crossings.
_MOSTLY = 0.8
#: A run that went on so many times longer than others took, without reaching the target, does not reach it.
_HOPELESS = 1.5


@dataclass(frozen=True, slots=True)
class Crossings:
    """By batch size: at how many passes its runs reached the target."""

    log_batches: FloatArray
    #: Mean of ln passes, and how many runs it is of.
    log_passes: FloatArray
    runs: FloatArray
    #: Of one run around the mean of its batch size, and of the distance of evaluations.
    variance: float
    grid_variance: FloatArray
    #: ln B and the number of passes of runs that have not reached the target.
    below: tuple[tuple[float, float], ...]


def crossings_of(table: MetricTable, target: float) -> Crossings | None:
    """The crossings, if runs stopped when they reached the target; None if they went on, or if samples are not of runs."""
    sign = 1.0 if table.higher_is_better else -1.0
    runs: dict[tuple[int, int], list[MetricSample]] = defaultdict(list)
    for sample in table.samples:
        runs[sample.batch, sample.run].append(sample)
    ends: dict[int, list[tuple[float, float]]] = defaultdict(list)
    below: list[tuple[float, float]] = []
    went_on = alone = 0
    for (batch, _), samples in runs.items():
        above = [at for at, sample in enumerate(samples) if sign * (sample.metric - target) >= 0]
        if len(samples) < 2 or samples[0].run < 0:
            alone += 1
        elif not above:
            below.append((math.log(batch), samples[-1].epochs))
        elif above[0] == 0:
            went_on += 1
        else:
            ends[batch].append((samples[above[0]].epochs, samples[above[0] - 1].epochs))
            went_on += above[0] < len(samples) - 1
    stopped = sum(len(found) for found in ends.values()) - went_on
    if stopped < max(2, _MOSTLY * (stopped + went_on + alone)):
        return None
    batches = sorted(ends)
    logs = [np.log([passes for passes, _ in ends[batch]]) for batch in batches]
    left = sum(float(((each - each.mean()) ** 2).sum()) for each in logs)
    freedom = sum(len(each) - 1 for each in logs)
    gaps = [np.mean([math.log(last / before) for last, before in ends[batch]]) for batch in batches]
    return Crossings(
        log_batches=np.log(batches),
        log_passes=np.array([each.mean() for each in logs]),
        runs=np.array([len(each) for each in logs], dtype=np.float64),
        variance=(left + _RUN_WEIGHT * _RUN_SD**2) / (freedom + _RUN_WEIGHT),
        grid_variance=np.array(gaps) ** 2 / 12,
        below=tuple(below),
    )


def log_passes(found: Crossings, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln passes of one run to the target, and their standard deviation, at each of ``at`` (ln B)."""
    x, y = found.log_batches, found.log_passes
    own = _OFFSET**2 + found.grid_variance
    factor = cho_factor(_process(x, x) + np.diag(found.variance / found.runs + own), lower=True)
    # a batch size that was sampled has the very offset that its samples have
    same = np.abs(at[:, None] - x[None, :]) < 1e-9
    cross = _process(at, x) + np.where(same, own, 0.0)
    weights = cho_solve(factor, cross.T).T
    ones = np.ones(len(x))
    solved = cho_solve(factor, ones)
    precision = float(ones @ solved)
    scales = float(x.mean()) + _ABOVE + _SPREAD * _GRID
    shapes = np.logaddexp(0.0, x[None, :] - scales[:, None])
    levels = (y - shapes) @ solved / precision
    off = y - shapes - levels[:, None]
    log_weights = -0.5 * (_GRID**2 + np.einsum("ij,ij->i", off, cho_solve(factor, off.T).T))
    share = np.exp(log_weights - log_weights.max())
    share /= share.sum()
    means = levels[:, None] + np.logaddexp(0.0, at[None, :] - scales[:, None]) + off @ weights.T
    middle = share @ means
    apart = share @ (means - middle) ** 2
    alone = _AMPLITUDE**2 + np.where(same.any(axis=1), same @ own, own.mean())
    known = np.einsum("ij,ij->i", weights, cross)
    of_level = (1 - weights @ ones) ** 2 / precision
    return middle, np.sqrt(np.maximum(alone - known, 0.0) + of_level + apart + found.variance)


def chance_reached(found: Crossings, at: FloatArray) -> FloatArray:
    """Chance that a run ever reaches the target, at each of ``at`` (ln B): as of runs of batch sizes like it."""
    good = np.exp(-np.abs(at[:, None] - found.log_batches[None, :]) / _ALIKE) @ found.runs
    bad = np.zeros(len(at))
    if found.below:
        sizes, passes = np.array(found.below).T
        hopeless = np.log(passes) > log_passes(found, sizes)[0] + math.log(_HOPELESS)
        bad = np.exp(-np.abs(at[:, None] - sizes[None, :]) / _ALIKE) @ hopeless
    return np.asarray((_USUALLY + good) / (1.0 + good + bad))


def _process(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray(_AMPLITUDE**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / _LENGTH) ** 2))
