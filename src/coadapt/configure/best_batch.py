"""The batch size with the highest goodput on given GPUs: Pollux (Qiao et al., OSDI 2021), section 3.3.

For K replicas, 50 total batch sizes M in geometric steps from max(M0, per_gpu_min K) to the largest
allowed are split into local = M / K examples per GPU, s extra passes (accumulation) and m examples per pass:

    s = ceil(local / per_gpu_max - eps) - 1      at least 1 if K = 1 and M > M0, unless limits.samples_alone
    m = ceil(local / (s + 1) - eps)

and the one with the highest throughput x efficiency wins. A single replica accumulates because the gradient noise
cannot be estimated from a single gradient; our agent does so in sampled steps only. The agent, the simulated agent
and the controller's curves all call this function, so they agree by construction; the agent adds its own hysteresis.

Where we deviate: sizes so large that even ``per_gpu_min`` exceeds the largest batch have goodput 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.model import Batch, Fact
from coadapt.prediction.gradient_noise import efficiency, efficiency_over

if TYPE_CHECKING:
    from coadapt.prediction.step_time._base import FittedStepTime

#: Number of total batch sizes that are evaluated.
CANDIDATES = 50
#: Keeps rounding errors from adding a pass or an example.
EPS = 1e-8
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int_]


class SpeedModel(Fact, frozen=True):
    """The speed of one job on one GPU type: step time joined with efficiency."""

    step_time: FittedStepTime
    #: (grad_sqr, grad_var) at the reference batch size.
    grad: tuple[float, float]
    #: The reference batch size M0.
    initial_batch: int
    #: The batch size they were measured at, from which the noise scale is converted to other batch sizes; 0: no conversion.
    grad_batch: int = 0

    def goodput(
        self,
        nodes: npt.ArrayLike,
        replicas: npt.ArrayLike,
        atomic: npt.ArrayLike,
        accumulation: npt.ArrayLike,
    ) -> FloatArray:
        """Returns work per second = throughput x efficiency; arguments broadcast.

        Args:
            nodes: number of nodes.
            replicas: number of replicas.
            atomic: examples per replica and pass.
            accumulation: extra passes per optimizer step.
        """
        batch = np.asarray(replicas) * np.asarray(atomic) * (np.asarray(accumulation) + 1)
        examples_per_s = self.step_time.throughput(nodes, replicas, atomic, accumulation)
        return np.asarray(examples_per_s * self.efficiency(batch))

    def efficiency(self, batch: IntArray | FloatArray) -> FloatArray:
        """Useful share of the examples at total batch sizes."""
        if self.grad_batch:
            return efficiency_over(*self.grad, self.initial_batch, self.grad_batch, batch)
        return efficiency(*self.grad, np.asarray(batch / self.initial_batch))


class BatchChoice(Fact, frozen=True):
    """The batch size chosen for given GPUs: per GPU and pass, and extra passes before the update."""

    atomic_batch: int
    accumulation: int
    #: Predicted work per second; 0 where the job cannot run on these GPUs.
    goodput: float


class BatchChoices(NamedTuple):
    """``BatchChoice`` for many (nodes, replicas) at once."""

    atomic_batch: IntArray
    accumulation: IntArray
    goodput: FloatArray


class _Candidates(NamedTuple):
    """CANDIDATES rows, one column per replica count."""

    atomic: IntArray
    accumulation: IntArray
    allowed: npt.NDArray[np.bool_]


@lru_cache(maxsize=16384)
def best_batch(
    params: FittedStepTime,
    grad: tuple[float, float],
    limits: Batch,
    nodes: int,
    replicas: int,
    grad_batch: int = 0,
) -> BatchChoice:
    """Returns the batch size with the highest goodput. Memoised, since agents ask again at every report.

    Args:
        params: fitted step-time model.
        grad: (grad_sqr, grad_var) at the reference batch size.
        limits: batch size limits of the job; in mode "fixed" the total is M0.
        nodes: number of nodes.
        replicas: number of replicas.
        grad_batch: batch size at which ``grad`` was measured; 0: used as it is.
    """
    model = SpeedModel(step_time=params, grad=grad, initial_batch=limits.initial, grad_batch=grad_batch)
    best = best_batches(model, limits, np.array([nodes]), np.array([replicas]))
    return BatchChoice(
        atomic_batch=int(best.atomic_batch[0]),
        accumulation=int(best.accumulation[0]),
        goodput=float(best.goodput[0]),
    )


def best_batches(
    model: SpeedModel, limits: Batch, nodes: IntArray, replicas: IntArray, *, fixed: int | None = None
) -> BatchChoices:
    """Returns the best batch sizes for many (nodes, replicas) at once.

    Args:
        model: step time and efficiency of the job.
        limits: batch size limits of the job.
        nodes: node counts: one for each entry of ``replicas``, or a column of them for a whole grid.
        replicas: a row of replica counts, each at least 1.
        fixed: total batch size if it is given and not chosen.
    """
    if fixed is None and limits.mode == "fixed":
        fixed = limits.initial
    tried = candidates(limits, tuple(replicas.tolist()), fixed)
    goodput = model.goodput(nodes[..., None, :], replicas, tried.atomic, tried.accumulation)
    goodput = np.where(tried.allowed, goodput, 0.0)
    best = np.argmax(goodput, axis=-2)
    column = np.arange(len(replicas))
    accumulation = tried.accumulation[best, column]
    most = np.maximum(limits.max // (replicas * (accumulation + 1)), 1)
    atomic = np.minimum(tried.atomic[best, column], most)
    return BatchChoices(
        atomic, accumulation, np.take_along_axis(goodput, best[..., None, :], axis=-2)[..., 0, :]
    )


def best_goodput(
    model: SpeedModel,
    limits: Batch,
    nodes: tuple[int, ...],
    replicas: tuple[int, ...],
    *,
    fixed: int | None = None,
) -> FloatArray:
    """Returns the highest goodput at each pair of ``nodes`` and ``replicas``.

    Step times are cached, so that new gradient statistics cost one product. ``model``, ``limits`` and ``fixed`` as in
    ``best_batches``.
    """
    if fixed is None and limits.mode == "fixed":
        fixed = limits.initial
    batch, examples_per_s = throughputs(model.step_time, limits, nodes, replicas, fixed)
    return np.asarray((examples_per_s * model.efficiency(batch)).max(axis=0))


@lru_cache(maxsize=1024)
def throughputs(
    params: FittedStepTime,
    limits: Batch,
    nodes: tuple[int, ...],
    replicas: tuple[int, ...],
    fixed: int | None,
) -> tuple[IntArray, FloatArray]:
    """Returns total batch size and examples per second of every candidate (a row) at each (nodes, replicas); 0 if not
    allowed.

    Args:
        params: fitted step-time model.
        limits: batch size limits of the job.
        nodes: node counts, one for each entry of ``replicas``.
        replicas: replica counts.
        fixed: total batch size if it is given and not chosen.
    """
    tried, count = candidates(limits, replicas, fixed), np.array(replicas)
    speed = params.throughput(np.array(nodes), count, tried.atomic, tried.accumulation)
    batch = count * tried.atomic * (tried.accumulation + 1)
    return batch, np.where(tried.allowed, speed, 0.0)


@lru_cache(maxsize=4096)
def candidates(limits: Batch, replicas: tuple[int, ...], fixed: int | None) -> _Candidates:
    """Returns the candidates for each replica count: CANDIDATES rows, or one row for the given total batch size
    ``fixed``.
    """
    count = np.array(replicas)
    least, largest = np.maximum(limits.initial, limits.per_gpu_min * count), limits.max
    if fixed is not None:
        least, largest = np.maximum(limits.per_gpu_min * count, fixed), fixed
        splits = np.array([split_batch(fixed, k, limits) for k in replicas])
        atomic, accumulation = splits[None, :, 0], splits[None, :, 1]
    else:
        # rounding inside geomspace must not lead below M0, where efficiency is not defined
        batch = np.maximum(np.geomspace(least, np.maximum(least, largest), CANDIDATES), least)
        local = batch / count
        accumulation = np.ceil(local / limits.per_gpu_max - EPS) - 1
        alone = (count == 1) & (batch > limits.initial + EPS) & (not limits.samples_alone)
        accumulation = np.where(alone, np.maximum(accumulation, 1), accumulation).astype(np.int_)
        atomic = np.ceil(local / (accumulation + 1) - EPS).astype(np.int_)
    allowed = (limits.per_gpu_min <= atomic) & (atomic <= limits.per_gpu_max) & (least <= largest)
    return _Candidates(atomic, accumulation, allowed)


@lru_cache(maxsize=65536)
def split_batch(batch: int, replicas: int, limits: Batch) -> tuple[int, int]:
    """(examples per GPU and pass, extra passes) for a total batch size that is given, not chosen."""
    local = math.ceil(batch / replicas - EPS)
    accumulation = math.ceil(local / limits.per_gpu_max - EPS) - 1
    if replicas == 1 and batch > limits.initial and not limits.samples_alone:
        accumulation = max(accumulation, 1)
    atomic = math.ceil(local / (accumulation + 1) - EPS)
    most = limits.max // (replicas * (accumulation + 1))
    return max(min(atomic, most), 1), accumulation


def first_batch(replicas: int, limits: Batch) -> tuple[int, int]:
    """Returns the split a job starts with before any measurement: that of the smallest total batch size it may have."""
    return split_batch(max(limits.initial, limits.per_gpu_min * replicas), replicas, limits)
