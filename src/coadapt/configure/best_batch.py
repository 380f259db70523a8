"""The batch size with the highest goodput on given GPUs: Pollux (Qiao et al., OSDI 2021), section 3.3.

For K replicas, 50 total batch sizes M in geometric steps from max(M0, per_gpu_min K) to the largest
allowed are split into local = M / K examples per GPU, s extra passes (accumulation) and m examples per pass:

    s = ceil(local / per_gpu_max - eps) - 1      at least 1 if K = 1 and M > M0
    m = ceil(local / (s + 1) - eps)

and the one with the highest throughput x efficiency wins. A lone replica accumulates because the
gradient noise cannot be told from a single gradient. The agent, the simulated agent and the
controller's curves all call this function, so they agree by construction; hysteresis is the agent's own.

Where we deviate: sizes so large that even ``per_gpu_min`` exceeds the largest batch have goodput 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.configure._base import BatchChoice, FloatArray, IntArray, SpeedModel
from coadapt.model import Batch

#: Total batch sizes looked at.
CANDIDATES = 50
#: Keeps rounding errors from adding a pass or an example.
EPS = 1e-8


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


@lru_cache(maxsize=65536)
def best_batch(model: SpeedModel, nodes: int, replicas: int, limits: Batch) -> BatchChoice:
    """The best batch size for ``replicas`` on ``nodes``. Memoised: agents ask again at every report."""
    best = best_batches(model, np.array([nodes]), np.array([replicas]), limits)
    return BatchChoice(
        atomic_batch=int(best.atomic_batch[0]),
        accumulation=int(best.accumulation[0]),
        goodput=float(best.goodput[0]),
    )


def best_batches(model: SpeedModel, nodes: IntArray, replicas: IntArray, limits: Batch) -> BatchChoices:
    """The best batch size for each pair of two arrays of one length; replicas >= 1."""
    candidates = _candidates(limits, tuple(replicas.tolist()))
    goodput = model.goodput(nodes, replicas, candidates.atomic, candidates.accumulation)
    goodput = np.where(candidates.allowed, goodput, 0.0)
    best = np.argmax(goodput, axis=0)
    column = np.arange(len(replicas))
    accumulation = candidates.accumulation[best, column]
    most = largest_batch(limits) // (replicas * (accumulation + 1))
    atomic = np.minimum(candidates.atomic[best, column], np.maximum(most, 1))
    return BatchChoices(atomic, accumulation, goodput[best, column])


@lru_cache(maxsize=4096)
def _candidates(limits: Batch, replicas: tuple[int, ...]) -> _Candidates:
    count = np.array(replicas)
    least = np.maximum(limits.initial, limits.per_gpu_min * count)
    largest = largest_batch(limits)
    batch = np.clip(np.geomspace(least, np.maximum(least, largest), CANDIDATES), least, None)
    local = batch / count
    accumulation = np.ceil(local / limits.per_gpu_max - EPS) - 1
    alone = (count == 1) & (batch > limits.initial + EPS)
    accumulation = np.where(alone, np.maximum(accumulation, 1), accumulation).astype(np.int_)
    atomic = np.ceil(local / (accumulation + 1) - EPS).astype(np.int_)
    allowed = (limits.per_gpu_min <= atomic) & (atomic <= limits.per_gpu_max) & (least <= largest)
    return _Candidates(atomic, accumulation, allowed)


def largest_batch(limits: Batch) -> int:
    """Largest total batch size the job may choose: M0 itself if its mode is fixed."""
    return limits.initial if limits.mode == "fixed" else limits.max


@lru_cache(maxsize=65536)
def split_batch(batch: int, replicas: int, limits: Batch) -> tuple[int, int]:
    """(examples per GPU and pass, extra passes) for a total batch size that is given, not chosen."""
    local = math.ceil(batch / replicas - EPS)
    accumulation = math.ceil(local / limits.per_gpu_max - EPS) - 1
    if replicas == 1 and batch > limits.initial:
        accumulation = max(accumulation, 1)
    atomic = math.ceil(local / (accumulation + 1) - EPS)
    most = limits.max // (replicas * (accumulation + 1))
    return max(min(atomic, most), 1), accumulation


def first_batch(replicas: int, limits: Batch) -> tuple[int, int]:
    """The split a job starts with before anything is known: the smallest total batch size it may have."""
    return split_batch(max(limits.initial, limits.per_gpu_min * replicas), replicas, limits)
