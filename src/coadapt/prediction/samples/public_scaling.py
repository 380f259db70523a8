"""How the time of a pass changes with workers, as public training runs show it: a prior for a user's few samples.

A linear model in logarithms, whose slopes differ from job to job around what all public jobs have in common
(Laird and Ware 1982):

    ln time = c + w . x(B, K, n) + offset(B, K, n) + run,     w ~ N(mean, covariance)  over jobs,     c free
    x = ln K/16,   ln B/K,   ln n,   bend(ln K/16)

with batch size B, K workers on n nodes. Each configuration has an offset from its job's slopes, of one standard deviation for
all (``noise``); where the configuration was sampled, its samples tell the offset, up to how equal runs differ. ``bend`` is a parabola up to ``_STRAIGHT`` workers and a line beyond, since a
parabola in logarithms would turn around. Mean, covariance and noise are fitted to the results of MLPerf Training by
``benchmarks/fit_public_scaling.py`` and shipped (a few numbers). They are those of accelerators with NVLink
and InfiniBand or the like: whether they hold for a user's cluster is decided by his samples (``epoch_time``).

The answer is the time at the expected speed, exp(mean - variance / 2) over slopes: where slopes leave a factor open, the
median would be too slow by more than it is too fast.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
import numpy as np

from coadapt.model import Fact
from coadapt.prediction._base import FloatArray

#: Workers around which slopes are counted, and from which on the bend is straight.
_CENTRE, _STRAIGHT = 16.0, 256.0
#: Standard deviation of ln time between equal runs where repetitions do not tell, and how many repetitions it counts as.
_RUN_SD, _RUN_WEIGHT = 0.03, 4.0
#: Variance of the constant: any job may be as slow as it likes.
_ANY = 1e4


class ScalingPrior(Fact, frozen=True):
    """Slopes of public jobs."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    #: Standard deviation of ln time that the slopes do not explain.
    noise: float
    jobs: int
    configurations: int
    source: str = ""


class ScalingPosterior(Fact, frozen=True):
    """Constant and slopes of one job, given its samples."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    #: Batch, workers and nodes of each configuration that was sampled; by how much ln of its time is off the slopes, and its variance.
    measured: tuple[tuple[float, float, float, float, float], ...] = ()


@cache
def shipped_prior() -> ScalingPrior:
    """The prior that is shipped."""
    content = (resources.files("coadapt.prediction.samples") / "data" / "public_scaling.json").read_bytes()
    return msgspec.json.decode(content, type=ScalingPrior)


def features(x: FloatArray) -> FloatArray:
    """A column for the constant and one for each slope, for rows of batch, workers, nodes."""
    batch, workers, nodes = x[:, 0], x[:, 1], x[:, 2]
    more, straight = np.log(workers / _CENTRE), np.log(_STRAIGHT / _CENTRE)
    bend = np.where(more > straight, straight * (2 * more - straight), more**2) / 4
    return np.stack([np.ones(len(x)), more, np.log(batch / workers), np.log(nodes), bend], axis=1)


def condition(rows: FloatArray, prior: ScalingPrior | None = None) -> ScalingPosterior:
    """The job's own slopes, and the offsets of its configurations, for samples in rows of batch, workers, nodes, seconds."""
    prior = prior or shipped_prior()
    places, at, counts = np.unique(rows[:, :3], axis=0, return_inverse=True, return_counts=True)
    at, log_s = at.reshape(-1), np.log(rows[:, 3])
    log_times = np.bincount(at, log_s) / counts
    again = float(((log_s - log_times[at]) ** 2).sum()) + _RUN_WEIGHT * _RUN_SD**2
    run = again / (len(rows) - len(places) + _RUN_WEIGHT)
    known = np.concatenate([[0.0], prior.mean])
    spread = np.zeros((len(known), len(known)))
    spread[0, 0], spread[1:, 1:] = _ANY, prior.covariance
    columns = features(places)
    # by the covariance of the samples, not by its inverse: exact for one sample as for hundreds
    joint = columns @ spread
    of_slopes, own = joint @ columns.T, prior.noise**2 * np.eye(len(places))
    total = of_slopes + own + np.diag(run / counts)
    gain = np.linalg.solve(total, np.concatenate([joint, of_slopes + own, own], axis=1)).T
    off = log_times - columns @ known
    size = len(known)
    left = spread - gain[:size] @ joint
    there = np.diag(of_slopes + own - gain[size : size + len(places)] @ (of_slopes + own))
    offsets = gain[size + len(places) :] @ off
    return ScalingPosterior(
        mean=tuple((known + gain[:size] @ off).tolist()),
        covariance=tuple(map(tuple, left.tolist())),
        noise=prior.noise,
        measured=tuple(
            (batch, workers, nodes, offset, max(variance, 0.0) + run)
            for (batch, workers, nodes), offset, variance in zip(
                places.tolist(), offsets.tolist(), there.tolist(), strict=True
            )
        ),
    )


def log_times(posterior: ScalingPosterior, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the times and their standard deviation, for rows of batch, workers, nodes; of one run, where the configuration was sampled."""
    columns = features(x)
    variance = np.einsum("ij,jk,ik->i", columns, np.array(posterior.covariance), columns)
    variance = np.maximum(variance, 0.0)
    middle = columns @ np.array(posterior.mean)
    measured = {each[:3]: each[3:] for each in posterior.measured}
    own = [measured.get((batch, workers, nodes)) for batch, workers, nodes in x[:, :3].tolist()]
    offset = np.array([0.0 if found is None else found[0] for found in own])
    sampled = np.array([found is not None for found in own])
    of_sampled = np.array([0.0 if found is None else found[1] for found in own])
    middle = middle + offset - np.where(sampled, 0.0, variance / 2)
    return np.asarray(middle), np.sqrt(np.where(sampled, of_sampled, variance + posterior.noise**2))


def fit_prior(jobs: list[FloatArray], rounds: int = 60) -> ScalingPrior:
    """Mean, covariance and noise by expectation maximisation, for jobs in rows of batch, workers, nodes, seconds."""
    data = [(features(rows), np.log(rows[:, 3])) for rows in jobs]
    size = data[0][0].shape[1]
    mean, noise = np.zeros(size), 0.08**2
    mean[1] = -0.9
    covariance = np.diag([4.0] + [0.05] * (size - 1))
    for _ in range(rounds):
        precision = np.linalg.inv(covariance)
        found, spreads, left, count = [], [], 0.0, 0
        for columns, times in data:
            spread = np.linalg.inv(precision + columns.T @ columns / noise)
            own = spread @ (precision @ mean + columns.T @ times / noise)
            off = times - columns @ own
            left += float(off @ off + np.trace(columns @ spread @ columns.T))
            count += len(times)
            found.append(own)
            spreads.append(spread)
        all_found = np.array(found)
        mean = all_found.mean(axis=0)
        apart = all_found - mean
        covariance = np.mean(spreads, axis=0) + apart.T @ apart / len(data) + 1e-5 * np.eye(size)
        noise = left / count
    return ScalingPrior(
        mean=tuple(mean[1:].tolist()),
        covariance=tuple(map(tuple, covariance[1:, 1:].tolist())),
        noise=float(np.sqrt(noise)),
        jobs=len(jobs),
        configurations=sum(len(rows) for rows in jobs),
    )
