"""Time of one pass over the data by (batch, workers, nodes), from a user's own samples: our default.

    ln(B x epoch time) = form(B, K, n; theta)  +  residual(B/K, K, n)

The form extrapolates to configurations that were never sampled, the residual corrects it near those that were. The form is
fitted under the residual's covariance (kriging with a trend), and forms that the samples leave possible are drawn: how far
they differ, after the residual has corrected each, is the uncertainty of the form. Beyond the samples' range a drift of the
form itself is added. The 80% interval is the standard deviation times a factor from cross-validation over whole
configurations (``conformal``); the part of the form is never reduced by that factor, because held-out samples lie among
others. Errors of times are relative, so intervals are too. One sample suffices; below ten the params say ``few``.

**Public runs.** Beside the form stands a prior pooled over public jobs (``public_scaling``), which knows how fast links
scale far better than few samples do, and nothing of slow ones. Both predict each worker count of the samples from the
others. The answer is the mixture of both, in odds of ``_ODDS`` (or ``_ODDS_SLOW``, for GPUs without a fast link) times the
ratio of these predictive densities: a job whose samples span nodes decides by itself.

**Form.** Step time up to the data size, from epoch times: Pollux' form (``prediction.step_time._base``) made aware of nodes.
With N examples, B batch size, K workers on n nodes, m = B/K, an epoch takes (N/B) T, so that B x epoch time = N T:

    G    = (a + b m) (K/n)^h                           workers on a node share its processors
    S    = r (K/2)^p on one node;  s (K/8)^q on more;  s (K/8)^q e^d on two;  0 for K = 1
    N T  = (G^g + S^g)^(1/g) + o B                     o N: what an epoch costs besides its steps

Two nodes have a term of their own because one link pair is not a ring: measured times are not monotone in nodes.
Where we deviate from Pollux: powers of K for lines in K, h, d and o; relative errors, which are correlated for samples of
one worker count; weak normal priors on all ten (logs of times, plain powers) around what the samples' medians suggest, so
that a parameter the samples do not determine stays at its prior, with its prior's uncertainty, and eight samples suffice.

**Residual.** A Gaussian process on log time inside the sampled range:

    k(x, x') = A^2 M(d(x, x')) + C^2 [same K and n] M(|ln m - ln m'| / l)      + noise^2 on the diagonal

M is Matern-5/2, d the distance in ln m, ln K and the class of nodes (one, two, more) over their lengths. The
second term: real tables have offsets of single worker counts (a node half filled, an odd ring), which
hold for all batch sizes and say nothing about the next count. Sizes and lengths are the mode under weak
log-normal priors, so that eight samples give no more than eight samples can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit

from coadapt.errors import UnknownNameError
from coadapt.model import Fact
from coadapt.model.hardware import find_gpu
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray, relative_interval
from coadapt.prediction.samples import public_scaling
from coadapt.prediction.samples.conformal import folds_of, spread_factors
from coadapt.prediction.samples.public_scaling import ScalingPosterior, ScalingPrior
from coadapt.prediction.samples.sample_table import EpochTable, check_configuration, epoch_columns, nodes_of
from coadapt.prediction.samples.sample_table import observe_epoch as observe

__all__ = ["EpochParams", "EpochQuery", "fit", "fit_rows", "log_widths_at", "observe", "predict", "times_at"]

#: Above this number of samples an even selection is fitted: the cost of the residual grows with their third power.
MAX_ROWS = 400
#: No interval is wider than this factor either way: beyond it the number says nothing anyhow.
_WIDEST = np.log(100.0)
#: Spread by which the form itself is wrong per e-fold of batch per GPU or workers beyond the samples.
_DRIFT = 0.3
#: Forms that stand for what the samples leave possible; half of an 80% interval in standard deviations.
_FORMS, _NORMAL = 24, 1.2816
#: ln workers at which the factor is taken, and how far an error tells of others: how even times are on many workers says little of few.
_KNOTS, _REACH = np.log(2.0 ** np.arange(0, 11)), 0.7
#: Odds of the prior of public runs against the form before any sample: for GPUs with fast links, which public runs have, and for others.
_ODDS, _ODDS_SLOW = math.log(0.97 / 0.03), math.log(0.3 / 0.7)
#: A share below this is none: it would widen the interval and hardly move the answer.
_NO_SHARE = 0.05
#: Bandwidth of links within a node from which on they count as fast.
_FAST_GB_S = 100.0
#: At most so many worker counts are held out in turn to weigh the two.
_COUNTS = 8


class EpochQuery(Fact, frozen=True):
    """A configuration to predict; ``nodes`` None: packed."""

    batch: int
    workers: int
    nodes: int | None = None


class EpochParams(Fact, frozen=True, tag=True):
    """The form, its residual, and the factor from expected spread to 80% interval.

    ``few``: fewer samples than the form has parameters; the rest of the answer is the prior's.
    """

    gpus_per_node: int
    theta: tuple[float, ...]
    #: Other parameters that the samples leave possible.
    forms: tuple[tuple[float, ...], ...]
    residual: Residual
    #: Batch, workers and nodes of the samples.
    sampled: tuple[tuple[float, float, float], ...]
    #: By ln workers, at ``_KNOTS``.
    factors: tuple[float, ...] = (1.0,) * len(_KNOTS)
    few: bool = False
    #: The job's slopes after public runs, and their share of the answer.
    public: ScalingPosterior | None = None
    share: float = 0.0


def fit(
    table: EpochTable, prior: EpochParams | None = None, *, scaling: ScalingPrior | None = None
) -> EpochParams | None:
    """The model with calibrated intervals. Memoised.

    Args:
        table: The samples.
        prior: The answer while the table is empty.
        scaling: Slopes of public runs; None: those that are shipped. Benchmarks leave runs out.
    """
    return _fit(table, scaling) if table.samples else prior


@lru_cache(maxsize=256)
def _fit(table: EpochTable, scaling: ScalingPrior | None) -> EpochParams:
    rows = epoch_columns(table)
    if len(rows) > MAX_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64)]
    fitted = fit_rows(rows, table.gpus_per_node)
    errors, places = [np.zeros(0)], [np.zeros(0)]
    for held in folds_of(rows[:, :3]):
        part = fit_rows(rows[~held], table.gpus_per_node, near=fitted)
        log_times, left, form = _log_times(part, rows[held])
        errors.append(np.abs(np.log(rows[held, 3]) - log_times) / np.hypot(left, form))
        places.append(np.log(rows[held, 1]))
    return EpochParams(
        gpus_per_node=fitted.gpus_per_node,
        theta=fitted.theta,
        forms=fitted.forms,
        residual=fitted.residual,
        sampled=fitted.sampled,
        factors=tuple(
            spread_factors(np.concatenate(errors), np.concatenate(places), _KNOTS, _REACH).tolist()
        ),
        few=len(rows) < PARAMETERS,
        public=public_scaling.condition(rows, scaling),
        share=_public_share(rows, table, fitted, scaling),
    )


def _public_share(
    rows: FloatArray, table: EpochTable, fitted: EpochParams, scaling: ScalingPrior | None
) -> float:
    """Share of the prior of public runs: its odds, by how well it and the form predict one worker count from the others."""
    log_odds = _ODDS_SLOW if _has_slow_link(table.gpu_type) else _ODDS
    counts = np.unique(rows[:, 1])
    if len(counts) > 1:
        for count in counts[np.linspace(0, len(counts) - 1, min(len(counts), _COUNTS)).astype(np.int64)]:
            held = rows[:, 1] == count
            truth = np.log(rows[held, 3])
            part = fit_rows(rows[~held], table.gpus_per_node, near=fitted)
            by_form, left, form = _log_times(part, rows[held])
            others = public_scaling.condition(rows[~held], scaling)
            by_public, spread = public_scaling.log_times(others, rows[held])
            # samples of one count err together: they are one witness
            log_odds += float(np.mean(_log_density(truth - by_public, spread)))
            log_odds -= float(np.mean(_log_density(truth - by_form, np.hypot(left, form))))
    return float(expit(log_odds))


def _log_density(error: FloatArray, spread: FloatArray) -> FloatArray:
    return np.asarray(-0.5 * (error / spread) ** 2 - np.log(spread))


def _has_slow_link(gpu_type: str) -> bool:
    """Whether GPUs of a type are known to have no fast link to each other: then nodes rarely have one, too."""
    try:
        return find_gpu(gpu_type).link_gb_s < _FAST_GB_S
    except UnknownNameError:
        return False


def fit_rows(rows: FloatArray, gpus_per_node: int, near: EpochParams | None = None) -> EpochParams:
    """The model without calibration; the search starts at, and keeps sizes and lengths of, ``near``."""
    target = np.log(rows[:, 3] * rows[:, 0])
    points = _points(rows)
    if near is None:
        theta = fit_form(rows, target)
        logs = fit_residual(points, target - log_time(theta, rows)).logs
    else:
        theta, logs = np.array(near.theta), near.residual.logs
    # what is left over goes together for the samples of one worker count: a form fitted as if it did not would take their offset for its own
    factor = factor_of(conditioned(points, np.zeros(len(rows)), cautious(logs)))
    theta = fit_form(rows, target, theta, factor)
    if near is None:
        forms = plausible_forms(rows, target, theta, factor, _FORMS)
    else:  # a fold leaves open what all samples do
        forms = np.array(near.forms) - np.array(near.theta) + theta
    return EpochParams(
        gpus_per_node=gpus_per_node,
        theta=tuple(theta.tolist()),
        forms=tuple(tuple(row) for row in forms.tolist()),
        residual=conditioned(points, target - log_time(theta, rows), logs),
        sampled=tuple((b, k, n) for b, k, n in rows[:, :3].tolist()),
    )


def times_at(params: EpochParams, x: FloatArray) -> FloatArray:
    """Epoch times in seconds for rows of batch, workers, nodes."""
    return np.asarray(np.exp(log_widths_at(params, x)[0]))


def log_widths_at(params: EpochParams, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the epoch times and half of their 80% intervals, for rows of batch, workers, nodes: ``predict`` for many."""
    log_times, left, form = _log_times(params, x)
    # samples that were held out lie among others: what they tell of is the residual, and little of the form far from them
    factor = np.interp(np.log(x[:, 1]), _KNOTS, params.factors)
    half = np.minimum(np.hypot(factor * left, np.maximum(factor, _NORMAL) * form), _WIDEST)
    if params.public is None or params.share < _NO_SHARE:
        return log_times, half
    share = params.share
    public, spread = public_scaling.log_times(params.public, x)
    apart = share * (1 - share) * (public - log_times) ** 2
    both = share * (_NORMAL * spread) ** 2 + (1 - share) * half**2 + _NORMAL**2 * apart
    return share * public + (1 - share) * log_times, np.minimum(np.sqrt(both), _WIDEST)


def predict(params: EpochParams, x: EpochQuery) -> Interval:
    """Seconds of one pass over the data."""
    check_configuration("query", x.batch, x.workers, x.nodes)
    nodes = nodes_of(x.workers, x.nodes, params.gpus_per_node)
    log_times, half = log_widths_at(params, np.array([[x.batch, x.workers, nodes]], dtype=np.float64))
    return relative_interval(float(np.exp(log_times[0])), float(half[0]))


def _log_times(params: EpochParams, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln of the epoch times, the spread of what the form leaves over, and that of the form."""
    points = _points(x)
    theta, forms, sampled = np.array(params.theta), np.array(params.forms), np.array(params.sampled)
    left, variance, weights = mean_and_variance(params.residual, points)
    middle = log_time(theta, x)
    # another form is another one at the samples as well, and the residual makes up for it near them
    there = log_time(theta, sampled)
    others = np.stack([log_time(f, x) - middle - weights @ (log_time(f, sampled) - there) for f in forms])
    beyond = _DRIFT * _beyond(np.array(params.residual.points), points)
    form = np.sqrt((others**2).mean(axis=0) + beyond**2)
    return middle + others.mean(axis=0) + left - np.log(x[:, 0]), np.sqrt(variance), form


def _beyond(sampled: FloatArray, points: FloatArray) -> FloatArray:
    """Distance from the box of the samples in ln m and ln K."""
    low, high = sampled[:, :2].min(axis=0), sampled[:, :2].max(axis=0)
    outside = np.maximum(np.maximum(low - points[:, :2], points[:, :2] - high), 0.0)
    return np.asarray(np.sqrt((outside**2).sum(axis=1)))


def _points(x: FloatArray) -> FloatArray:
    """Coordinates of the residual: ln m, ln K, class of nodes (one, two, more)."""
    return np.stack([np.log(x[:, 0] / x[:, 1]), np.log(x[:, 1]), np.minimum(x[:, 2], 3.0)], axis=1)


PARAMETERS = 10
(_A, _B, _R, _P, _S, _Q, _D, _G, _H, _O) = range(PARAMETERS)
#: Spread of the relative error that weighs samples against priors.
_SCATTER = 0.08
_SD = np.array([1.3, 2.0, 0.8, 0.3, 2.0, 0.3, 0.5, 1.0, 0.1, 1.5])
#: Bounds that only nonsense reaches, and steps that only nonsense needs.
_FARTHEST, _MAX_STEPS = 12.0, 50
_DAMPING, _GIVE_UP, _ENOUGH = 1e-2, 1e8, 1e-5
#: a belongs to b m, and r to s, more closely than either to the median time.
_TIES = np.eye(PARAMETERS)
_TIES[_A, _B] = _TIES[_R, _S] = -1.0
_LOG_2, _LOG_8 = np.log(2.0), np.log(8.0)


def log_time(theta: FloatArray, x: FloatArray) -> FloatArray:
    """ln(N T) for rows of batch, workers, nodes (further columns are ignored)."""
    return _terms(theta, x)[0]


def _terms(theta: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(N T) and its derivatives, a column per parameter."""
    batch, workers, nodes = x[:, 0], x[:, 1], x[:, 2]
    slopes = np.zeros((len(x), PARAMETERS))
    log_batch, log_more, of_node = np.log(batch), np.log(np.maximum(workers, 2.0)), np.log(workers / nodes)
    log_local = log_batch - np.log(workers)
    log_grad = np.logaddexp(theta[_A], theta[_B] + log_local)
    of_a = np.exp(theta[_A] - log_grad)
    log_grad = log_grad + theta[_H] * of_node
    apart = nodes > 1
    inside = theta[_R] + theta[_P] * (log_more - _LOG_2)
    between = theta[_S] + theta[_Q] * (log_more - _LOG_8) + np.where(nodes == 2, theta[_D], 0.0)
    log_sync = np.where(apart, between, inside)
    gamma = 1 + np.exp(theta[_G])
    many = workers > 1
    log_step = np.where(many, np.logaddexp(gamma * log_grad, gamma * log_sync) / gamma, log_grad)
    log_epoch = theta[_O] + log_batch
    total = np.logaddexp(log_step, log_epoch)
    of_step = np.exp(log_step - total)
    of_grad = np.where(many, np.exp(gamma * (log_grad - log_step)), 1.0)
    by_grad, by_sync = of_step * of_grad, of_step * (1 - of_grad)
    slopes[:, _A], slopes[:, _B], slopes[:, _H] = by_grad * of_a, by_grad * (1 - of_a), by_grad * of_node
    slopes[:, _R], slopes[:, _S] = np.where(apart, 0.0, by_sync), np.where(apart, by_sync, 0.0)
    slopes[:, _P] = slopes[:, _R] * (log_more - _LOG_2)
    slopes[:, _Q] = slopes[:, _S] * (log_more - _LOG_8)
    slopes[:, _D] = np.where(nodes == 2, by_sync, 0.0)
    middle = of_grad * log_grad + (1 - of_grad) * np.where(many, log_sync, 0.0) - log_step
    slopes[:, _G] = np.where(many, of_step * middle * (gamma - 1) / gamma, 0.0)
    slopes[:, _O] = 1 - of_step
    return np.asarray(total), slopes


def fit_form(
    x: FloatArray,
    log_times: FloatArray,
    start: FloatArray | None = None,
    factor: FloatArray | None = None,
    astray: FloatArray | None = None,
) -> FloatArray:
    """Fit the most probable parameters of the form.

    Args:
        x: Rows of batch, workers, nodes.
        log_times: Logarithms of batch x epoch time.
        start: Where the search starts; None: at the mean of the prior.
        factor: Lower Cholesky factor of the residual's covariance; None: independent errors of equal variance.
        astray: Offsets of the prior means, in standard deviations (for ``plausible_forms``).
    """
    mean = _prior_mean(x, log_times)
    lower, upper = mean - _FARTHEST, mean + _FARTHEST
    start = mean if start is None else np.clip(start, lower, upper)
    moved = np.zeros(PARAMETERS) if astray is None else astray

    def misfit(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_time_s, slopes = _terms(theta, x)
        both = np.column_stack([log_time_s - log_times, slopes])
        both = both / _SCATTER if factor is None else solve_triangular(factor, both, lower=True)
        off = np.concatenate([both[:, 0], _TIES @ (theta - mean) / _SD - moved])
        return off, np.concatenate([both[:, 1:], _TIES / _SD[:, None]])

    return _descended(misfit, start, lower, upper)


def _descended(
    misfit: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    theta: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Least squares after Levenberg and Marquardt; a library's is ten times as slow for ten parameters, and plans make forty."""
    damping = _DAMPING
    off, slopes = misfit(theta)
    cost = float(off @ off)
    for _ in range(_MAX_STEPS):
        normal, downhill = slopes.T @ slopes, slopes.T @ off
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
        there = np.clip(theta - step, lower, upper)
        new_off, new_slopes = misfit(there)
        new_cost = float(new_off @ new_off)
        if new_cost > cost:
            damping *= 8
            if damping > _GIVE_UP:
                break
            continue
        done = cost - new_cost <= _ENOUGH * cost
        theta, off, slopes, cost = there, new_off, new_slopes, new_cost
        damping = max(damping / 5, 1e-9)
        if done:
            break
    return theta


def plausible_forms(
    x: FloatArray, log_times: FloatArray, theta: FloatArray, factor: FloatArray, count: int
) -> FloatArray:
    """Draw parameters that the samples leave possible, a row each.

    Randomise, then optimise (Bardsley et al. 2014): each draw is the most probable parameters under other noise and other
    prior means. A covariance around the mode would not do: where synchronisation hides the computation, or a
    constant may be either launches or latency, the posterior is far from a normal distribution.

    Args:
        x: Rows of batch, workers, nodes.
        log_times: Logarithms of batch x epoch time.
        theta: The most probable parameters, where each search starts.
        factor: Lower Cholesky factor of the residual's covariance.
        count: Number of draws.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        noise = factor @ rng.normal(size=len(x))
        found.append(fit_form(x, log_times + noise, theta, factor, rng.normal(size=PARAMETERS)))
    return np.array(found)


def _prior_mean(x: FloatArray, log_times: FloatArray) -> FloatArray:
    centre, batch = float(np.median(log_times)), np.log(x[:, 0])
    local = batch - np.log(x[:, 1])
    atomic = float(np.median(local))
    mean = np.zeros(PARAMETERS)
    mean[_B] = centre - 1.0 - atomic
    # launches against the largest batch per GPU, which memory decides: an eighth of the computing, give or take a factor four
    mean[_A] = mean[_B] + float(local.max()) - 2.0
    mean[_S], mean[_R] = centre - 1.0, centre - 2.0
    mean[[_P, _Q]] = 0.3
    mean[_O] = centre - 6.0 - float(np.median(batch))
    return mean


#: Prior of the logs of: A, lengths of ln m, ln K, class of nodes, noise, C, l. Chosen on bert, cifar10, imagenet.
_MEAN = np.log([0.05, 1.5, 0.7, 1.0, 0.02, 0.03, 1.5])
_RESIDUAL_SD = 0.7
_AMPLITUDE, _LENGTHS, _NOISE, _OFFSET, _OFFSET_LENGTH = 0, slice(1, 4), 4, 5, 6
#: Steps of the search; the mode is flat, and the tenth digit of a length is of no use.
_RESIDUAL_MAX_STEPS = 40
#: Bounds of the logs that only nonsense reaches: a search that steps beyond them overflows.
_RESIDUAL_FARTHEST = 7.0


class Residual(Fact, frozen=True):
    """The process: sampled points (ln m, ln K, class of nodes), the residual at each, and the seven logs."""

    points: tuple[tuple[float, float, float], ...]
    left: tuple[float, ...]
    logs: tuple[float, ...]


def fit_residual(points: FloatArray, left: FloatArray) -> Residual:
    """Fit the process with its most probable sizes and lengths."""
    found = minimize(
        _Objective(points, left),
        _MEAN,
        jac=True,
        method="L-BFGS-B",
        bounds=[(middle - _RESIDUAL_FARTHEST, middle + _RESIDUAL_FARTHEST) for middle in _MEAN],
        options={"maxiter": _RESIDUAL_MAX_STEPS},
    )
    return conditioned(points, left, tuple(found.x.tolist()))


def conditioned(points: FloatArray, left: FloatArray, logs: tuple[float, ...]) -> Residual:
    """The process with given sizes and lengths (``logs``), conditioned on the samples."""
    return Residual(
        points=tuple((a, b, c) for a, b, c in points.tolist()), left=tuple(left.tolist()), logs=logs
    )


def mean_and_variance(process: Residual, points: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Expected residual at each point, its variance, noise included, and the weight of each sample in it (a row per point)."""
    at, factor, solved = _solved(process)
    logs = np.array(process.logs)
    cross = _kernel(points, at, logs)
    explained = solve_triangular(factor, cross.T, lower=True)
    alone = math.exp(2 * logs[_AMPLITUDE]) + math.exp(2 * logs[_OFFSET])
    variance = np.maximum(alone - (explained**2).sum(axis=0), 0.0) + math.exp(2 * logs[_NOISE])
    weights = solve_triangular(factor, explained, lower=True, trans="T").T
    return cross @ solved, variance, np.asarray(weights)


def cautious(logs: tuple[float, ...]) -> tuple[float, ...]:
    """Raise the sizes to at least their usual values.

    Most samples have many workers, and how little single counts differ there says little about small counts.
    """
    least = np.full(len(_MEAN), -np.inf)
    least[[_AMPLITUDE, _OFFSET]] = _MEAN[[_AMPLITUDE, _OFFSET]]
    return tuple(np.maximum(logs, least).tolist())


def factor_of(process: Residual) -> FloatArray:
    """Lower Cholesky factor of the covariance of the samples."""
    return _solved(process)[1]


@lru_cache(maxsize=64)
def _solved(process: Residual) -> tuple[FloatArray, FloatArray, FloatArray]:
    points, left, logs = np.array(process.points), np.array(process.left), np.array(process.logs)
    covariance = _kernel(points, points, logs) + math.exp(2 * logs[_NOISE]) * np.eye(len(points))
    factor = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    return points, factor, np.asarray(cho_solve((factor, True), left), dtype=np.float64)


def _matern(r: FloatArray) -> FloatArray:
    u = math.sqrt(5) * r
    return np.asarray((1 + u + u * u / 3) * np.exp(-u))


def _distances(a: FloatArray, b: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Differences per coordinate, and whether workers and nodes are the same."""
    apart = np.abs(a[:, None, :] - b[None, :, :])
    return apart, (apart[..., 1] < 1e-9) & (apart[..., 2] < 1e-9)


def _kernel(a: FloatArray, b: FloatArray, logs: FloatArray) -> FloatArray:
    apart, same = _distances(a, b)
    near = _matern(np.sqrt(((apart / np.exp(logs[_LENGTHS])) ** 2).sum(axis=-1)))
    offset = _matern(apart[..., 0] / math.exp(logs[_OFFSET_LENGTH]))
    return np.asarray(
        math.exp(2 * logs[_AMPLITUDE]) * near + math.exp(2 * logs[_OFFSET]) * np.where(same, offset, 0.0)
    )


class _Objective:
    """Minus log posterior of the seven logs, with its gradient; distances are computed once."""

    def __init__(self, points: FloatArray, left: FloatArray) -> None:
        self.left = left
        self.apart, self.same = _distances(points, points)
        self.identity = np.eye(len(points))

    def __call__(self, logs: FloatArray) -> tuple[float, FloatArray]:
        parts = self._parts(logs)
        covariance = parts[_AMPLITUDE] / 2 + parts[_NOISE] / 2 + parts[_OFFSET] / 2
        factor = np.linalg.cholesky(covariance)
        inverse = cho_solve((factor, True), self.identity)
        solved = inverse @ self.left
        from_prior = (logs - _MEAN) / _RESIDUAL_SD
        value = (
            0.5 * self.left @ solved + np.log(np.diag(factor)).sum() + 0.5 * float(from_prior @ from_prior)
        )
        # derivative of the value by an entry of the covariance
        by_entry = 0.5 * (inverse - np.outer(solved, solved))
        gradient = np.array([(by_entry * part).sum() for part in parts]) + from_prior / _RESIDUAL_SD
        return float(value), gradient

    def _parts(self, logs: FloatArray) -> list[FloatArray]:
        """Derivative of the covariance by each log."""
        scaled = self.apart / np.exp(logs[_LENGTHS])
        u = math.sqrt(5) * np.sqrt((scaled**2).sum(axis=-1))
        amplitude, fall = math.exp(2 * logs[_AMPLITUDE]), np.exp(-u)
        by_length = [amplitude * 5 / 3 * (1 + u) * fall * scaled[..., i] ** 2 for i in range(3)]
        v = math.sqrt(5) * self.apart[..., 0] / math.exp(logs[_OFFSET_LENGTH])
        offset = np.where(self.same, math.exp(2 * logs[_OFFSET]) * np.exp(-v), 0.0)
        return [
            2 * amplitude * (1 + u + u * u / 3) * fall,
            *by_length,
            2 * math.exp(2 * logs[_NOISE]) * self.identity,
            2 * offset * (1 + v + v * v / 3),
            offset * (1 + v) * v * v / 3,
        ]
