"""Scaling curves, which policies see (``Curve``): of a fitted model, of a rigid job, and of a job with parameter servers.

``FittedCurve`` asks ``best_batch`` for all replica counts in one vectorised call, the first time any is
needed, and looks up afterwards. Only node counts that the step-time model distinguishes are computed.

``ServerCurve`` is Optimus' speed f(p, w) at the batch size its user asked for. Statistical efficiency is left at 1:
with parameter servers the batch size is given, not chosen, so work per second is batch size times steps per second.
Calls that do not name servers assume one per worker, the ratio Optimus starts from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from coadapt.configure.best_batch import (
    BatchChoice,
    FloatArray,
    SpeedModel,
    best_batch,
    best_batches,
    best_goodput,
    first_batch,
    split_batch,
    throughputs,
)
from coadapt.errors import InvariantError
from coadapt.model import Batch, JobSpec
from coadapt.prediction import parameter_server
from coadapt.prediction.gradient_noise import UNKNOWN, efficiency, later_phi, noise_scale
from coadapt.prediction.remaining import past_jobs
from coadapt.prediction.remaining.past_jobs import NO_PRIOR, Prior
from coadapt.prediction.remaining.work import (
    RemainingEvidence,
    RemainingWork,
    declared_left,
    evidence_for,
    remaining,
)
from coadapt.prediction.step_time import DEFAULT_MODEL, gpu_projection
from coadapt.prediction.step_time._base import FittedStepTime, StepTimeModel
from coadapt.prediction.step_time._base import step_time_model as by_name
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable

#: A question: GPU type, nodes and replicas.
Key = tuple[str, tuple[int, ...], bytes, bytes]
#: Columns of a new grid; it doubles when a question goes beyond.
_FIRST_COLUMNS = 64
#: Rows of a new grid: no node, one, several (or two, where more are distinguished).
_FIRST_ROWS = 3
#: A question about at most this number of (nodes, replicas) is answered without a grid.
_FEW = 160


class Curve(Protocol):
    """A job's scaling curve, handed to policies at every decision. Pure: same question, same answer.

    Made by the scheduler when a job's measurements or gradient statistics changed, and kept until they
    do again. ``nodes`` and ``replicas`` say how the job would be spread; arrays broadcast.
    """

    @property
    def fitted(self) -> bool:
        """False before the first measurement; the curve is then a guess: perfect scaling, unit speed."""

    @property
    def max_profiled_replicas(self) -> int:
        """Most replicas this job has been measured with; 0 before the first report."""

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> FloatArray:
        """Work per second at the best batch size; 0 where the job cannot run."""

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """Returns the batch size with the highest goodput, which the agent will choose on these GPUs."""

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Returns the seconds of one optimizer step with total batch size ``batch`` on ``replicas`` over ``nodes`` of
        ``gpu_type``.
        """

    def remaining_steps(self, batch: int, work: float | None = None) -> float:
        """Optimizer steps to the end at a given total batch size; inf if the end is not known.

        ``work``: the work left, where the caller has its own estimate; None: as declared.
        """

    def remaining_work(self) -> float:
        """Work to the end, as declared; inf if it is not."""

    def remaining(self) -> RemainingWork:
        """Remaining work by all evidence, as a distribution."""


class Answer(NamedTuple):
    """The cached goodput of a curve at some places."""

    goodput: FloatArray
    #: Of one that was asked together with others: examples per second [candidate, column], the total batch sizes of the
    #: candidates, and of each (nodes, replicas) that can run its place in ``goodput`` and its column.
    examples_per_s: npt.NDArray[np.float32] | None = None
    batch: FloatArray | None = None
    places: Mapping[tuple[int, int], tuple[int, int]] = {}


class FittedCurve:
    """Implements ``Curve`` from a job's measurements and those of past jobs like it.

    A GPU type without measurements is projected from one with (``prediction.step_time.gpu_projection``). Without any
    measurement the curve assumes perfect scaling and unit speed.

    Args:
        spec: specification of the job; it must have batch size limits.
        table: its measured step times.
        grad_sqr: squared norm of the gradient; None: not measured.
        grad_var: variance of the gradient; None: not measured.
        grad_batch: batch size at which both were measured.
        evidence: what is known about the remaining work; None: what ``spec`` declares.
        past: what past jobs like it showed.
        limits_by_type: batch size limits on GPU types where they differ from those of ``spec``.
        one_gpu: examples per second on one GPU, by type, where that was profiled before.
        step_time_model: name or instance of the step-time model to fit.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        table: StepTimeTable,
        grad_sqr: float | None = None,
        grad_var: float | None = None,
        grad_batch: int | None = None,
        evidence: RemainingEvidence | None = None,
        past: Prior = NO_PRIOR,
        limits_by_type: Mapping[str, Batch] | None = None,
        one_gpu: Mapping[str, float] | None = None,
        step_time_model: str | StepTimeModel = DEFAULT_MODEL,
    ) -> None:
        if spec.batch is None:
            raise InvariantError(f"job {spec.name!r} has no batch size limits; its curve is a RigidCurve")
        self._table, self._past = table, past
        self._step_time_model = by_name(step_time_model)
        #: With what is known of its twins, where it has not been measured itself.
        self._known = past_jobs.joined(table, past.table)
        self._limits = spec.batch
        self._limits_by_type = limits_by_type or {}
        #: Total batch size if it is given and not chosen.
        self.fixed = (spec.requested_batch or spec.batch.initial) if spec.batch.mode == "fixed" else None
        self._grad, self._grad_batch = UNKNOWN, 0
        if grad_sqr is not None and grad_var is not None:
            self._grad = (grad_sqr, grad_var)
            self._grad_batch = (grad_batch or 0) if self._step_time_model.carries_noise else 0
        elif past.noise:
            # as noisy as jobs like it were at first
            self._grad = (1.0, past.noise[0].value / spec.batch.initial)
        self._one_gpu = one_gpu
        #: Called before a fit, so that a holder of many curves can fit them all at once.
        self.before_fit: Callable[[], None] | None = None
        self._evidence = evidence if evidence is not None else evidence_for(spec)
        self._models: dict[str, SpeedModel | None] = {}
        self._grids: dict[str, FloatArray] = {}
        #: Questions answered so far: see ``goodput_table.goodput_rows``.
        self.answers: dict[Key, Answer] = {}
        self._left: RemainingWork | None = None

    @property
    def fitted(self) -> bool:
        """True once there is a measurement, its own or of a job like it."""
        return bool(self._known.rows)

    @property
    def max_profiled_replicas(self) -> int:
        """Most replicas measured, on any GPU type, with this job or one like it."""
        return self._known.max_replicas()

    def limits(self, gpu_type: str = "gpu") -> Batch:
        """Returns the batch size limits on a GPU type."""
        return self._limits_by_type.get(gpu_type, self._limits)

    def model(self, gpu_type: str = "gpu") -> SpeedModel | None:
        """Returns the model on a GPU type, measured or projected; None if nothing is known. Fitted on first use."""
        if gpu_type not in self._models:
            self._models[gpu_type] = self._fitted_model(gpu_type)
        return self._models[gpu_type]

    def _fitted_model(self, gpu_type: str) -> SpeedModel | None:
        if self.before_fit is not None:
            self.before_fit()
        prior = self._projected(gpu_type)
        params = self._step_time_model.fit(self._known, prior, gpu_type=gpu_type)
        if params is None:
            return None
        return SpeedModel(
            step_time=params,
            grad=self._grad,
            initial_batch=self._limits.initial,
            grad_batch=self._grad_batch,
        )

    def _projected(self, gpu_type: str) -> FittedStepTime | None:
        """Stands in, or is leant on, where at most one GPU was measured and another type with more."""
        if self._known.max_replicas(gpu_type) > 1:
            return None
        source = gpu_projection.source_of(self._known, gpu_type)
        known = None if source is None else self.model(source)
        if source is None or known is None:
            return None
        by = gpu_projection.speed(self._known, source, gpu_type, known.step_time, self._one_gpu)
        return gpu_projection.project(known.step_time, by)

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> FloatArray:
        """Work per second at the best batch size; 0 where the job cannot run."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        model = self.model(gpu_type)
        if (
            not self._step_time_model.by_grid
            and model is not None
            and nodes.shape == replicas.shape
            and nodes.size <= _FEW
        ):
            return self._goodput_at(model, nodes, replicas, gpu_type)
        # before anything is known, one and several nodes
        rows = np.minimum(nodes, 2) if model is None else model.step_time.distinct_nodes(nodes)
        grid = self._grid(gpu_type, int(rows.max(initial=0)), int(replicas.max(initial=0)))
        found = grid[rows, np.minimum(replicas, grid.shape[1] - 1)]
        return np.asarray(np.where(nodes <= replicas, found, 0.0))

    def _goodput_at(
        self, model: SpeedModel, nodes: npt.NDArray[np.int_], replicas: npt.NDArray[np.int_], gpu_type: str
    ) -> FloatArray:
        key = question_key(gpu_type, nodes, replicas)
        known = self.answers.get(key)
        if known is not None:
            return known.goodput
        runs = (nodes >= 1) & (nodes <= replicas)
        found = np.zeros(nodes.shape)
        if runs.any():
            places = tuple(nodes[runs].tolist()), tuple(replicas[runs].tolist())
            found[runs] = best_goodput(model, self.limits(gpu_type), *places, fixed=self.fixed)
        found.flags.writeable = False
        self.answers[key] = Answer(found)
        return found

    def batchable(self, gpu_type: str) -> SpeedModel | None:
        """Returns the model if ``goodput_table`` can evaluate it together with others, else None."""
        model = self.model(gpu_type)
        return model if model is not None and model.step_time.batch_group() is not None else None

    def _grid(self, gpu_type: str, row: int, replicas: int) -> FloatArray:
        """Rows: distinct node counts, at least to ``row``; columns: at least 0..``replicas``, or up to the last that is not 0."""
        grid = self._grids.get(gpu_type)
        limits = self.limits(gpu_type)
        # one column more than can run: it stands for all beyond
        columns = (self.fixed or limits.max) // limits.per_gpu_min + 2
        if grid is None or grid.shape[0] <= row or grid.shape[1] <= min(replicas, columns - 1):
            wanted = _FIRST_COLUMNS
            if grid is not None:
                wanted = (2 if grid.shape[1] <= replicas else 1) * grid.shape[1]
            rows = max(row + 1, _FIRST_ROWS if grid is None else grid.shape[0])
            wanted = min(max(replicas + 1, wanted), columns)
            grid = _grid_of(self.model(gpu_type), limits, self.fixed, rows, wanted)
            self._grids[gpu_type] = grid
        return grid

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """Returns the batch size that the agent will choose on these GPUs."""
        model, limits = self.model(gpu_type), self.limits(gpu_type)
        if model is not None and self.fixed is None:
            return best_batch(model.step_time, model.grad, limits, nodes, replicas, model.grad_batch)
        split = (
            first_batch(replicas, limits) if self.fixed is None else split_batch(self.fixed, replicas, limits)
        )
        goodput = float(self.goodput(nodes, replicas, gpu_type))
        return BatchChoice(atomic_batch=split[0], accumulation=split[1], goodput=goodput)

    def quickening(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Returns the job's mean future speed over its present speed: gradients get noisier during a run."""
        model, left = self.model(gpu_type), self.remaining_work()
        if model is None or self.fixed is not None or not 0 < left < math.inf:
            return 1.0
        phis = self._phis_ahead(left)
        now, batch, speed = self._speeds_at(model, nodes, replicas, gpu_type)
        if not now or not phis:
            return 1.0
        m0 = self._limits.initial
        goodput = [float((speed * (phi + m0) / (phi + batch)).max()) for phi in phis]
        return len(phis) / sum(now / max(one, 1e-12) for one in goodput)

    def _speeds_at(
        self, model: SpeedModel, nodes: int, replicas: int, gpu_type: str
    ) -> tuple[float, FloatArray, FloatArray]:
        """Goodput there, total batch sizes that may be chosen, and examples per second at each."""
        for (asked_type, *_), answer in self.answers.items():
            if asked_type == gpu_type and answer.examples_per_s is not None and answer.batch is not None:
                place, column = answer.places.get((nodes, replicas), (-1, -1))
                if place >= 0:
                    goodput = float(answer.goodput[place])
                    speed = answer.examples_per_s[:, column].astype(np.float64)
                    return goodput, answer.batch[:, column], speed
        batch, speed = throughputs(model.step_time, self.limits(gpu_type), (nodes,), (replicas,), None)
        return float(self.goodput(nodes, replicas, gpu_type)), batch[:, 0].astype(np.float64), speed[:, 0]

    def _phis_ahead(self, left: float) -> list[float]:
        """Noise scale at the middles of the thirds of the work left: as in past jobs, else by the usual trend."""
        done, phi = self._evidence.done, noise_scale(*self._grad, self._limits.initial)
        shares = [(done + left * third) / (done + left) for third in (1 / 6, 1 / 2, 5 / 6)]
        if self._past.noise:
            logs = [math.log(max(each.value, 1e-9)) for each in self._past.noise]
            return [math.exp(float(np.interp(share, past_jobs.NOISE_SHARES, logs))) for share in shares]
        if not 0 < phi < math.inf:
            return []
        return [later_phi(phi, done, left, share * (done + left)) for share in shares]

    def phi_ahead(self, work: float, left: float) -> float | None:
        """Noise scale once ``work`` is done where ``left`` is left now, beginning with the present one; None: not known."""
        done, phi = self._evidence.done, noise_scale(*self._grad, self._limits.initial)
        if not 0 < phi < math.inf or not 0 < left < math.inf:
            return None
        if not self._past.noise:
            return later_phi(phi, done, left, work)
        logs = [math.log(max(each.value, 1e-9)) for each in self._past.noise]
        then, now = (
            float(np.interp(at / (done + left), past_jobs.NOISE_SHARES, logs))
            for at in (max(work, done), done)
        )
        return phi * math.exp(then - now)

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Returns the seconds of one optimizer step with total batch size ``batch`` on ``replicas`` over ``nodes`` of
        ``gpu_type``.
        """
        model = self.model(gpu_type)
        if model is None:
            return batch / replicas
        atomic, accumulation = split_batch(batch, replicas, self.limits(gpu_type))
        return float(model.step_time.step_time(nodes, replicas, atomic, accumulation))

    def remaining_steps(self, batch: int, work: float | None = None) -> float:
        """Optimizer steps to the end at a given total batch size; inf if the end is not known."""
        left = self.remaining_work() if work is None else work
        return left / (batch * efficiency(*self._grad, batch / self._limits.initial))

    def remaining_work(self) -> float:
        """Work to the end, as declared; inf if it is not."""
        return declared_left(self._evidence)

    def remaining(self) -> RemainingWork:
        """Remaining work by all evidence, as a distribution."""
        if self._left is None:
            self._left = remaining(self._evidence)
        return self._left


def question_key(gpu_type: str, nodes: npt.NDArray[np.int_], replicas: npt.NDArray[np.int_]) -> Key:
    """Returns the key under which the answer to a question is cached."""
    # one number and a row of one number have the same bytes
    return gpu_type, nodes.shape, nodes.tobytes(), replicas.tobytes()


@lru_cache(maxsize=1024)
def _grid_of(
    model: SpeedModel | None, limits: Batch, fixed: int | None, rows: int, columns: int
) -> FloatArray:
    """Goodput by (distinct node counts, replicas). Memoised: progress makes a new curve, not a new model."""
    grid = np.zeros((rows, columns))
    if model is None:
        replicas = np.arange(columns)
        grid[1:] = np.where(limits.per_gpu_min * replicas <= (fixed or limits.max), replicas, 0)
    elif columns > 1:
        nodes = model.step_time.node_counts()[: rows - 1, None]
        grid[1:, 1:] = best_batches(model, limits, nodes, np.arange(1, columns), fixed=fixed).goodput
    grid.flags.writeable = False
    return grid


class RigidCurve:
    """Implements ``Curve`` for a job without a model: it runs at the requested size or not at all.

    Its work is seconds at that size, and a "step" is a second of it.
    """

    fitted = True

    def __init__(self, *, spec: JobSpec, evidence: RemainingEvidence | None = None) -> None:
        self._requested = spec.requested
        self._evidence = evidence if evidence is not None else evidence_for(spec)

    @property
    def max_profiled_replicas(self) -> int:
        """The requested size, the only one that is known."""
        return self._requested

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> FloatArray:
        """1 at the requested size, 0 elsewhere."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        return np.asarray(
            (replicas == self._requested) & (nodes >= 1) & (nodes <= replicas), dtype=np.float64
        )

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """Returns a batch size of 1 as a placeholder: the script's own batch size is not known."""
        return BatchChoice(atomic_batch=1, accumulation=0, goodput=float(self.goodput(nodes, replicas)))

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Returns 1 where ``replicas`` is the requested size, else inf; ``batch``, ``nodes`` and ``gpu_type`` do not
        matter.
        """
        return 1.0 if replicas == self._requested else math.inf

    def remaining_steps(self, batch: int, work: float | None = None) -> float:
        """Seconds to the end."""
        return self.remaining_work() if work is None else work

    def remaining_work(self) -> float:
        """Seconds to the end at the requested size; inf if it is not declared."""
        return declared_left(self._evidence)

    def remaining(self) -> RemainingWork:
        """Returns the seconds to the end by all evidence: a distribution."""
        return remaining(self._evidence)


class ServerCurve:
    """Implements ``Curve``, and ``steps_per_s(servers, workers, batch)`` which Optimus asks for.

    Args:
        spec: specification of the job.
        table: measured speeds by number of servers and workers.
        evidence: what is known about the remaining work; None: what ``spec`` declares.
        prior: parameters of the speed, or a prior for them, from past jobs.
        step_time_model: name or instance of the model that fits the speed.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        table: parameter_server.ServerTable,
        evidence: RemainingEvidence | None = None,
        prior: parameter_server.ServerParams | parameter_server.ServerPrior | None = None,
        step_time_model: str | StepTimeModel = DEFAULT_MODEL,
    ) -> None:
        self._params = by_name(step_time_model).fit_servers(table, prior)
        self._table = table
        initial = spec.batch.initial if spec.batch is not None else 1
        self._batch = spec.requested_batch or initial
        self._evidence = evidence if evidence is not None else evidence_for(spec)

    @property
    def fitted(self) -> bool:
        """True once enough sizes were measured for a fit."""
        return self._params is not None

    @property
    def max_profiled_replicas(self) -> int:
        """Most workers measured."""
        return max((row.workers for row in self._table.rows), default=0)

    @property
    def measured_sizes(self) -> int:
        """Number of distinct (servers, workers) pairs measured."""
        return len({(row.servers, row.workers) for row in self._table.rows})

    def steps_per_s(self, servers: int, workers: int, batch: int) -> float:
        """Predicted steps per second of the whole job; one per second and worker before the first fit."""
        if self._params is None:
            return float(workers)
        return float(parameter_server.speed(self._params, servers, workers, batch))

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> FloatArray:
        """Work per second with as many servers as workers."""
        workers = np.asarray(replicas, dtype=np.float64) + 0.0 * np.asarray(nodes)
        if self._params is None:
            return workers * self._batch
        some = np.maximum(workers, 1.0)
        speed = parameter_server.speed(self._params, some, some, self._batch)
        return np.asarray(np.where(workers > 0, speed * self._batch, 0.0))

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """Returns the given batch size, split over the workers."""
        return BatchChoice(
            atomic_batch=max(math.ceil(self._batch / replicas), 1),
            accumulation=0,
            goodput=float(self.goodput(nodes, replicas)),
        )

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Returns the seconds of one step at ``batch`` with ``replicas`` workers and as many servers.

        ``nodes`` and ``gpu_type`` do not matter.
        """
        return 1.0 / self.steps_per_s(replicas, replicas, batch)

    def remaining_steps(self, batch: int, work: float | None = None) -> float:
        """Steps to the end; inf if the end is not known."""
        return (self.remaining_work() if work is None else work) / batch

    def remaining_work(self) -> float:
        """Work to the end; inf if it is not declared."""
        return declared_left(self._evidence)

    def remaining(self) -> RemainingWork:
        """Remaining work by all evidence, as a distribution."""
        return remaining(self._evidence)


def unmeasured(spec: JobSpec) -> FittedCurve | RigidCurve | ServerCurve:
    """Returns the curve of a job with this specification that has reported nothing."""
    if spec.batch is None:
        return RigidCurve(spec=spec)
    if spec.sync != "allreduce":
        table = parameter_server.ServerTable(synchronous=spec.sync != "ps-async")
        return ServerCurve(spec=spec, table=table)
    return FittedCurve(spec=spec, table=EMPTY_TABLE)
