"""Six training tasks as formulas, shipped with the package; fitted to the measurements of Pollux (Apache-2.0).

A step, with n nodes, r workers, k the most workers on one node, m examples per GPU:

    T_grad = grad(m) * (1 + crowding * (k - 1) + stragglers * ln r)        grad: linear between knots
    T_step = (T_grad^g + T_sync^g)^(1/g),  T_sync = sync(n, k)             sync: bilinear between knots
    sync_s = T_step - T_grad

This is Pollux' step time with the network's part as a small table over (nodes, workers per node), for it is
not monotone in either: two full nodes share one link per direction and are slower than three. Other
GPU types are projections by datasheet ratios and say so in the file.

A curve (noise scale, steps, metric) is given at some epochs for each measured batch size: between
epochs linear (noise scale: its logarithm), between batch sizes linear in the logarithm of the batch.

``data/profiles.json`` is made by ``benchmarks/fit_profiles.py`` and states the fitting errors.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import Batch, Fact, JobSpec, Role
from coadapt.simulation.truth._base import ANY_GPU, Truth


class GpuFacts(Fact, frozen=True):
    """A GPU type by its datasheet; ``compute`` and ``within`` are ratios to the measured type."""

    fp32_tflops: float
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    compute: float = 1.0
    within: float = 1.0
    projected: bool = False


class StepFacts(Fact, frozen=True):
    """Constants of the step-time formula."""

    batches: tuple[int, ...]
    grad_s: tuple[float, ...]
    crowding: float
    stragglers: float
    overlap: float
    nodes: tuple[int, ...]
    per_node: tuple[int, ...]
    sync_s: tuple[tuple[float, ...], ...]


class CurveFacts(Fact, frozen=True):
    """Curves at some epochs: one row per batch size, one number per epoch."""

    epochs: tuple[int, ...]
    batches: tuple[int, ...]
    noise_scale: tuple[tuple[float, ...], ...]
    steps: tuple[tuple[float, ...], ...]
    metric: tuple[tuple[float, ...], ...]
    #: Squared norm of the gradient, mean over batch sizes: its size decides nothing, but agents report it.
    grad_sqr: tuple[float, ...]


class TaskFacts(Fact, frozen=True):
    """One task of the file."""

    epochs: int
    data_size: int
    max_workers: int
    batch: Batch
    step: StepFacts
    curves: CurveFacts
    #: How far formula and measurements are apart, as shares: see ``about`` in the file.
    fit: dict[str, float]


class ProfileFile(Fact, frozen=True):
    """The file as it is."""

    about: dict[str, str]
    gpu_types: dict[str, GpuFacts]
    tasks: dict[str, TaskFacts]


class ProfileTruth:
    """A task as its formula says; every answer is kept."""

    def __init__(self, facts: TaskFacts, gpus: dict[str, GpuFacts]) -> None:
        self.facts, self._gpus = facts, gpus
        self.epochs, self.data_size = facts.epochs, facts.data_size
        self.max_workers = facts.max_workers
        self.gpu_types = tuple(gpus)
        per_epoch = facts.data_size / facts.batch.initial
        self._marks = tuple(per_epoch * (epoch + 1) for epoch in range(facts.epochs))
        self._noise_logs = [[math.log(value) for value in row] for row in facts.curves.noise_scale]
        self._sqr_logs = [math.log(value) for value in facts.curves.grad_sqr]
        self._batch_logs = [math.log(batch) for batch in facts.curves.batches]
        self._steps: dict[tuple[tuple[int, ...], int, str], tuple[float, float]] = {}
        self._gradients: dict[tuple[int, int], tuple[float, float]] = {}
        self._limits: dict[str, Batch] = {}

    def limits(self, gpu_type: str) -> Batch:
        found = self._limits.get(gpu_type)
        if found is None:
            own, batch = self._gpu(gpu_type), self.facts.batch
            room = own.memory_gb / self._gpu("").memory_gb
            most = max(batch.per_gpu_min, min(int(batch.per_gpu_max * room), batch.max))
            found = self._limits[gpu_type] = msgspec.structs.replace(batch, per_gpu_max=most)
        return found

    def epoch_marks(self) -> tuple[float, ...]:
        return self._marks

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        key = (shape, atomic_batch, gpu_type)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._formula(shape, atomic_batch, self._gpu(gpu_type))
        return found

    def _formula(self, shape: tuple[int, ...], atomic_batch: int, gpu: GpuFacts) -> tuple[float, float]:
        facts, most, workers = self.facts.step, max(shape), sum(shape)
        slower = 1.0 + facts.crowding * (most - 1) + facts.stragglers * math.log(workers)
        grad_s = _line(facts.batches, facts.grad_s, atomic_batch) * slower / gpu.compute
        if atomic_batch > facts.batches[-1]:
            grad_s *= atomic_batch / facts.batches[-1]
        by_nodes = [_line(facts.per_node, row, most) for row in facts.sync_s]
        sync_s = _line(facts.nodes, by_nodes, len(shape))
        if most > facts.per_node[-1]:
            # More GPUs per node than measured: each adds as much as the measured ones did on average.
            by_one = _line(facts.nodes, [row[0] for row in facts.sync_s], len(shape))
            span = facts.per_node[-1] - facts.per_node[0]
            sync_s += max(sync_s - by_one, 0.0) / span * (most - facts.per_node[-1])
        if len(shape) == 1:
            # With one worker nothing is sent: the rest is the optimizer's, and gains with the GPU.
            sync_s /= gpu.within if workers > 1 else gpu.compute
        step_s = (grad_s**facts.overlap + sync_s**facts.overlap) ** (1.0 / facts.overlap)
        return step_s, step_s - grad_s

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        key = (batch, epoch)
        found = self._gradients.get(key)
        if found is None:
            epochs = self.facts.curves.epochs
            noise = math.exp(self._between(self._noise_logs, batch, epoch))
            grad_sqr = math.exp(_line(epochs, self._sqr_logs, epoch))
            found = self._gradients[key] = (grad_sqr, grad_sqr * noise / self.facts.batch.initial)
        return found

    def steps_until(self, batch: int, epoch: int) -> float:
        return self._between(self.facts.curves.steps, batch, epoch)

    def metric(self, batch: int, epoch: int) -> float | None:
        return self._between(self.facts.curves.metric, batch, epoch)

    def _between(self, rows: Sequence[Sequence[float]], batch: int, epoch: int) -> float:
        values = [_line(self.facts.curves.epochs, row, epoch) for row in rows]
        return _line(self._batch_logs, values, math.log(batch))

    def _gpu(self, gpu_type: str) -> GpuFacts:
        if gpu_type in ANY_GPU:
            gpu_type = self.gpu_types[0]
        if gpu_type not in self._gpus:
            raise UnknownNameError("GPU type", gpu_type, self._gpus)
        return self._gpus[gpu_type]


def _line(knots: Sequence[float], values: Sequence[float], at: float) -> float:
    """Linear between the knots; outside them the nearest value."""
    right = bisect_right(knots, at)
    if right == 0:
        return values[0]
    if right == len(knots):
        return values[-1]
    left = right - 1
    return values[left] + (values[right] - values[left]) * (at - knots[left]) / (knots[right] - knots[left])


@cache
def shipped_file() -> ProfileFile:
    """The shipped file, read at first use."""
    data = resources.files("coadapt.simulation.truth").joinpath("data/profiles.json").read_bytes()
    return msgspec.json.decode(data, type=ProfileFile)


@cache
def shipped_profiles() -> dict[str, ProfileTruth]:
    """The shipped tasks by name, as ground truth."""
    file = shipped_file()
    return {name: ProfileTruth(facts, file.gpu_types) for name, facts in file.tasks.items()}


def profile(name: str) -> ProfileTruth:
    """The shipped task called ``name``."""
    known = shipped_profiles()
    if name not in known:
        raise UnknownNameError("profile", name, known)
    return known[name]


def spec_for(
    name: str, truth: Truth, profile: str, *, replicas: int, batch: int, user: str = "", gpu_type: str = ""
) -> JobSpec:
    """Returns the specification of a job that behaves as ``truth``.

    The job is elastic, from one worker up to what the truth covers and the largest batch size can feed. A policy that
    does not adapt sizes gives it ``replicas`` workers and ``batch`` examples.

    Args:
        name: Name of the job.
        truth: Ground truth of its profile.
        profile: Name of its profile.
        replicas: Number of workers its user asked for.
        batch: Total batch size its user asked for.
        user: The user.
        gpu_type: GPU type whose limits of the batch size apply; empty: the first one of the truth.
    """
    limits = truth.limits(gpu_type or truth.gpu_types[0])
    most = min(truth.max_workers, limits.max // limits.per_gpu_min)
    if not 1 <= replicas <= most:
        raise InputError(f"{name}: {replicas} replicas of {profile}; it can use 1 to {most}")
    if not limits.initial <= batch <= limits.max:
        raise InputError(
            f"{name}: batch size {batch} of {profile}; it must be in {limits.initial}..{limits.max}"
        )
    return JobSpec(
        name=name,
        user=user,
        roles=(Role(min=1, max=most),),
        requested=replicas,
        requested_batch=batch,
        batch=limits,
        epochs=float(truth.epochs),
        data_size=truth.data_size,
        profile=profile,
    )
