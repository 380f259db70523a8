"""The outlook of every option: passes, time, cost and metric, each with its spread, as arrays over the options.

The logarithm of the total time is assumed to be normal around the forecast. Its spread combines that of the pass time, that
of the number of passes (where the band around the metric's curve crosses the target), and that between runs. For the
objective "metric" the passes are as many as the limits allow with the required confidence.

A script that makes all the passes it is given needs enough for the target and few enough for the limits
(``passes_to_run``). With N the passes to the target and T the time of one, both log-normal, a run of n passes succeeds with

    chance(n) = P(N <= n) x P(ever reached) x P(set-up + n T <= limit)

The fewest passes that reach the required confidence are used: more would only cost. Where none do, those with the best
chance. For a run that ends by itself at the target the time is that of N passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from coadapt.planning.problem import HOUR_S, Option, Question
from coadapt.prediction._base import COVERAGE, FloatArray

#: Half of an 80% interval in standard deviations.
Z80 = float(ndtri(0.5 + COVERAGE / 2))
_ROUNDING = 1e-12
#: How far a run may be ahead of or behind its forecast, in ln passes; a round figure, to which results are not sensitive.
_CURVE_SD = 0.03
#: Five points and weights that stand for a normal distribution (Gauss-Hermite).
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_NORMAL = (_POINTS, _WEIGHTS / _WEIGHTS.sum())


@dataclass(frozen=True, slots=True)
class Columns:
    """Options as arrays."""

    options: Sequence[Option]
    gpu_type: npt.NDArray[np.str_]
    replicas: FloatArray
    nodes: FloatArray
    batch: FloatArray
    #: Price of the whole option per second.
    price_s: FloatArray


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes to the target per batch size, spread of their logarithm, probability that the target is ever reached."""

    needed: FloatArray
    log_sd: FloatArray
    reached: FloatArray


class Forecast(Protocol):
    """Forecasts that planners use; every method returns one value per option."""

    def pass_s(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Seconds of one pass over the data, and the spread of their logarithm."""

    def passes_to(self, target: float, batch: FloatArray) -> Passes:
        """Passes needed to reach a metric."""

    def passes_for(self, epochs: float, batch: FloatArray) -> FloatArray:
        """Passes that do the work of ``epochs`` epochs."""

    def metric_after(self, batch: FloatArray, passes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Metric after ``passes`` and its spread; None where the metric is unknown."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The outlook of all options; every field has one value per option."""

    passes: FloatArray
    passes_enough: FloatArray
    total_s: FloatArray
    #: Spread of the logarithm of the total.
    log_sd: FloatArray
    cost: FloatArray
    metric: FloatArray | None
    metric_sd: FloatArray | None
    #: Probability that the target is ever reached, and that all limits hold.
    reached: FloatArray
    chance: FloatArray
    #: The limit on the total time, be it the deadline or the budget.
    limit_s: FloatArray
    #: Passes at which the target is expected, and the limit under which the confidence would be reached; None: as ``passes`` and the spread tell.
    expected: FloatArray | None = None
    least_s: FloatArray | None = None


def columns_of(question: Question, options: Sequence[Option]) -> Columns:
    """Options as arrays."""
    numbers = np.array([(o.replicas, o.nodes, o.batch, o.gpus) for o in options], dtype=np.float64)
    types = np.array([o.gpu_type for o in options])
    price = np.empty(len(options))
    for name in np.unique(types):
        price[types == name] = question.price(str(name))
    return Columns(
        options=options,
        gpu_type=types,
        replicas=numbers[:, 0],
        nodes=numbers[:, 1],
        batch=numbers[:, 2],
        price_s=numbers[:, 3] * price / HOUR_S,
    )


def limits_s(question: Question, columns: Columns) -> FloatArray:
    """Total time that deadline and budget allow each option."""
    limit = np.full(len(columns.batch), np.inf if question.deadline_s is None else question.deadline_s)
    if question.budget is not None:
        with np.errstate(divide="ignore"):
            limit = np.minimum(limit, question.budget / columns.price_s)
    return limit


def look(question: Question, columns: Columns, forecast: Forecast) -> Outlook:
    """Compute the outlook of every option."""
    pass_s, pass_sd = forecast.pass_s(columns)
    per_pass = pass_s + question.validation_s + question.checkpoint_s
    pass_sd = pass_sd * pass_s / per_pass
    limit = limits_s(question, columns)
    z = float(ndtri(question.confidence))
    if question.target is not None:
        need = forecast.passes_to(question.target, columns.batch)
    else:
        passes = forecast.passes_for(question.epochs or 1.0, columns.batch)
        need = Passes(passes, np.zeros_like(passes), np.ones_like(passes))
    if question.objective == "metric":
        # as many as fit even where a pass takes longer than expected
        fit = (limit - question.setup_s) / (per_pass * np.exp(z * pass_sd))
        fit = np.maximum(np.floor(fit) if question.whole_passes else fit, 0.0)
        late = need.needed > 0 if question.target is None else need.needed <= fit
        need = Passes(fit, np.zeros_like(fit), np.where(late, need.reached, 0.0))
    whole = np.ceil(need.needed - 1e-9) if question.whole_passes else need.needed
    enough = need.needed * np.exp(z * need.log_sd)
    enough = np.ceil(enough - 1e-9) if question.whole_passes else enough
    expected, least_s, met, passes_sd = whole, None, need.reached, need.log_sd
    if not question.stops and question.target is not None and question.objective != "metric":
        run = passes_to_run(
            needed=need.needed,
            needed_sd=need.log_sd,
            reached=need.reached,
            per_pass_s=per_pass,
            per_pass_sd=pass_sd,
            setup_s=question.setup_s,
            run_sd=question.run_sd,
            limit_s=limit,
            confidence=question.confidence,
            whole=question.whole_passes,
        )
        whole = enough = run.passes
        least_s, met, passes_sd = run.least_s, run.met * met, np.zeros_like(whole)
    train_s = whole * per_pass
    total = question.setup_s + train_s
    log_sd = total_sd(np.hypot(pass_sd, passes_sd), train_s, total, question.run_sd)
    in_time = _probability_below(limit, total, log_sd)
    found = forecast.metric_after(columns.batch, np.maximum(whole, 1e-9))
    if question.objective == "metric" and found is not None:
        fit_sd = np.hypot(pass_sd, _CURVE_SD)
        found = _expected_metric(question, forecast, columns, (limit - question.setup_s) / per_pass, fit_sd)
    return Outlook(
        passes=whole,
        passes_enough=enough,
        total_s=total,
        log_sd=log_sd,
        cost=columns.price_s * total,
        metric=None if found is None else found[0],
        metric_sd=None if found is None else found[1],
        reached=need.reached,
        # passes for a metric are such that the chance *is* the confidence: rounding must not make it less
        chance=np.minimum(in_time * met * (whole > 0) * (1 + _ROUNDING), 1.0),
        limit_s=limit,
        expected=expected,
        least_s=least_s,
    )


def _expected_metric(
    question: Question, forecast: Forecast, columns: Columns, fit: FloatArray, pass_sd: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean of the metric when time is up, and its spread, over how many passes that may be: a run that is slow ends with less, not late."""
    metric, variance = np.zeros(len(fit)), np.zeros(len(fit))
    for z, weight in zip(*_NORMAL, strict=True):
        passes = np.exp(z * pass_sd) * fit
        passes = np.floor(passes + 1e-9) if question.whole_passes else passes
        found = forecast.metric_after(columns.batch, np.maximum(passes, 1e-9))
        assert found is not None  # the metric is known
        metric += weight * found[0]
        variance += weight * found[1] ** 2
    return metric, np.sqrt(variance)


def _probability_below(limit: FloatArray, middle: FloatArray, log_sd: FloatArray) -> FloatArray:
    """Probability that a log-normal value is at most ``limit``; certain where there is no spread."""
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(np.maximum(limit, 0.0)) - np.log(middle)
        z = np.where(log_sd > 0, off / np.maximum(log_sd, 1e-12), np.where(off >= -1e-12, np.inf, -np.inf))
    return np.asarray(np.where(np.isfinite(middle), ndtr(np.nan_to_num(z, nan=-np.inf)), 0.0))


#: Shares of the doubt allowed that are left to the number of passes, the rest is time's: tried from the largest on.
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.01)
_TINY = 1e-9


class PassesToRun(NamedTuple):
    """The number of passes that scripts are given; every field has one value per option."""

    passes: FloatArray
    #: P(the target is met within these passes | it is ever met).
    met: FloatArray
    #: The limit under which the confidence would be reached; infinite where no time helps.
    least_s: FloatArray


def total_sd(train_sd: FloatArray, train_s: FloatArray, total_s: FloatArray, run_sd: float) -> FloatArray:
    """Standard deviation of the logarithm of a total time.

    Args:
        train_sd: Standard deviation of the logarithm of the training time.
        train_s: Training time.
        total_s: Training time and set-up.
        run_sd: Standard deviation of the logarithm between runs.
    """
    share = np.divide(train_s, total_s, out=np.ones_like(total_s), where=np.isfinite(total_s) & (total_s > 0))
    return np.hypot(train_sd * share, run_sd)


def passes_to_run(
    *,
    needed: FloatArray,
    needed_sd: FloatArray,
    reached: FloatArray,
    per_pass_s: FloatArray,
    per_pass_sd: FloatArray,
    setup_s: float,
    run_sd: float,
    limit_s: FloatArray,
    confidence: float,
    whole: bool,
) -> PassesToRun:
    """The number of passes to give to a script that makes all of them.

    Args:
        needed: Passes to the target.
        needed_sd: Standard deviation of their logarithm.
        reached: Probability that the target is ever reached.
        per_pass_s: Seconds of one pass, with validation and checkpoint.
        per_pass_sd: Standard deviation of their logarithm.
        setup_s: Seconds of set-up.
        run_sd: Standard deviation of the logarithm of the total time between runs.
        limit_s: Total time that the limits allow.
        confidence: Required probability of success.
        whole: Whether only whole passes are possible.
    """
    passes, met = np.full(len(needed), np.nan), np.zeros(len(needed))
    best, least = np.full(len(needed), -1.0), np.full(len(needed), np.inf)
    for share in _SHARES:
        level = 1 - share * (1 - confidence)
        n = needed * np.exp(float(ndtri(level)) * needed_sd)
        n = np.ceil(n - _TINY) if whole else n
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.log(n / needed)
            hit = np.where(needed_sd > 0, ndtr(off / np.maximum(needed_sd, 1e-12)), 1.0)
            train_s = n * per_pass_s
            total = setup_s + train_s
            sd = total_sd(per_pass_sd, train_s, total, run_sd)
            late = np.log(np.maximum(limit_s, 0.0) / total)
            in_time = np.where(sd > 0, ndtr(late / np.maximum(sd, 1e-12)), late >= -_TINY)
        chance = np.nan_to_num(hit * reached * in_time)
        # once the confidence is reached nothing is better; hopeless ones keep the fewest
        better = (best < confidence - _TINY) & (chance > best + _TINY)
        passes, met = np.where(better, n, passes), np.where(better, hit, met)
        best = np.where(better, chance, best)
        left = confidence / np.maximum(hit * reached, _TINY)
        surely = total * np.exp(ndtri(np.clip(left, 0.5, 1 - _TINY)) * sd)
        least = np.minimum(least, np.where(left < 1, surely, np.inf))
    return PassesToRun(passes, met, least)
