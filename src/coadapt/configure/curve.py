"""Scaling curves: of a job with a fitted model, and of a rigid one.

A fitted curve asks ``best_batch`` for all replica counts in one vectorised call, the first time any is
needed, and looks up afterwards. Only node counts that the step-time model tells apart are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coadapt.configure._base import BatchChoice, FloatArray, SpeedModel
from coadapt.configure.best_batch import best_batch, best_batches, first_batch, split_batch
from coadapt.errors import InvariantError
from coadapt.model import Batch, JobSpec
from coadapt.predict import projection, step_time
from coadapt.predict.efficiency import UNKNOWN, efficiency
from coadapt.predict.step_time import AnyParams, Method, StepTimeTable

#: Columns of a new grid; it doubles when a question goes beyond.
_FIRST_COLUMNS = 64
#: Rows of a new grid: no node, one, several (or two, where more are told apart).
_FIRST_ROWS = 3


class FittedCurve:
    """Implements ``Curve`` from a job's measurements.

    A GPU type it was not measured on is projected from one that it was (``predict.projection``; ``one_gpu``: examples
    per second on one GPU, by type, where that was profiled before). Measured nowhere: perfect scaling, unit speed.
    ``before_fit`` is called before a fit: whoever holds many stale curves fits them all there, at once.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        table: StepTimeTable,
        grad_sqr: float | None = None,
        grad_var: float | None = None,
        work_done: float = 0.0,
        limits_by_type: Mapping[str, Batch] | None = None,
        prior: AnyParams | None = None,
        one_gpu: Mapping[str, float] | None = None,
        method: Method = "ours",
        before_fit: Callable[[], None] | None = None,
    ) -> None:
        if spec.batch is None:
            raise InvariantError(f"job {spec.name!r} has no batch size limits; its curve is a RigidCurve")
        self._table = table
        self._limits = spec.batch
        self._limits_by_type = limits_by_type or {}
        #: Total batch size if it is given and not chosen.
        self._fixed = (spec.requested_batch or spec.batch.initial) if spec.batch.mode == "fixed" else None
        self._grad = UNKNOWN if grad_sqr is None or grad_var is None else (grad_sqr, grad_var)
        self._prior, self._method, self._before_fit = prior, method, before_fit
        self._one_gpu = one_gpu
        self._remaining = math.inf
        if spec.epochs is not None and spec.data_size is not None:
            self._remaining = max(spec.epochs * spec.data_size - work_done, 0.0)
        self._models: dict[str, SpeedModel | None] = {}
        self._grids: dict[str, FloatArray] = {}

    @property
    def fitted(self) -> bool:
        """True once there is a measurement, or a prior to stand in for one."""
        return bool(self._table.rows) or self._prior is not None

    @property
    def max_profiled_replicas(self) -> int:
        """Most replicas measured, on any GPU type."""
        return self._table.max_replicas()

    def limits(self, gpu_type: str = "gpu") -> Batch:
        """Batch size limits on a GPU type."""
        return self._limits_by_type.get(gpu_type, self._limits)

    def model(self, gpu_type: str = "gpu") -> SpeedModel | None:
        """The model on a GPU type, measured or projected; None if nothing is known. Fitted at the first question."""
        if gpu_type not in self._models:
            self._models[gpu_type] = self._fitted_model(gpu_type)
        return self._models[gpu_type]

    def _fitted_model(self, gpu_type: str) -> SpeedModel | None:
        if self._before_fit is not None:
            self._before_fit()
        prior = self._prior if self._prior is not None else self._projected(gpu_type)
        params = step_time.fit(self._table, prior, gpu_type=gpu_type, method=self._method)
        if params is None:
            return None
        return SpeedModel(step_time=params, grad=self._grad, initial_batch=self._limits.initial)

    def _projected(self, gpu_type: str) -> AnyParams | None:
        """Stands in, or is leant on, where at most one GPU was measured and another type with more."""
        if self._table.max_replicas(gpu_type) > 1:
            return None
        source = projection.source_of(self._table, gpu_type)
        known = None if source is None else self.model(source)
        if source is None or known is None:
            return None
        by = projection.speed(self._table, source, gpu_type, known.step_time, self._one_gpu)
        return projection.project(known.step_time, by)

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> FloatArray:
        """Work per second at the best batch size; 0 where the job cannot run."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        model = self.model(gpu_type)
        rows = step_time.distinct_nodes(nodes, None if model is None else model.step_time)
        grid = self._grid(gpu_type, int(rows.max(initial=0)), int(replicas.max(initial=0)))
        found = grid[rows, np.minimum(replicas, grid.shape[1] - 1)]
        return np.asarray(np.where(nodes <= replicas, found, 0.0))

    def goodput_grid(self, max_nodes: int, max_replicas: int, gpu_type: str = "gpu") -> FloatArray:
        """``grid[n, r]`` is the goodput of r replicas on n nodes; row and column 0 are zeros."""
        return self.goodput(np.arange(max_nodes + 1)[:, None], np.arange(max_replicas + 1), gpu_type)

    def _grid(self, gpu_type: str, row: int, replicas: int) -> FloatArray:
        """Rows: node counts told apart, at least to ``row``; columns: at least 0..``replicas``, or as far as is not 0."""
        grid = self._grids.get(gpu_type)
        limits = self.limits(gpu_type)
        # one column more than can run: it stands for all beyond
        columns = (self._fixed or limits.max) // limits.per_gpu_min + 2
        if grid is None or grid.shape[0] <= row or grid.shape[1] <= min(replicas, columns - 1):
            wanted = _FIRST_COLUMNS
            if grid is not None:
                wanted = (2 if grid.shape[1] <= replicas else 1) * grid.shape[1]
            rows = max(row + 1, _FIRST_ROWS if grid is None else grid.shape[0])
            wanted = min(max(replicas + 1, wanted), columns)
            grid = _grid_of(self.model(gpu_type), limits, self._fixed, rows, wanted)
            self._grids[gpu_type] = grid
        return grid

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """What the agent will choose on these GPUs."""
        model, limits = self.model(gpu_type), self.limits(gpu_type)
        if model is not None and self._fixed is None:
            return best_batch(model.step_time, model.grad, limits, nodes, replicas)
        split = (
            first_batch(replicas, limits)
            if self._fixed is None
            else split_batch(self._fixed, replicas, limits)
        )
        goodput = float(self.goodput(nodes, replicas, gpu_type))
        return BatchChoice(atomic_batch=split[0], accumulation=split[1], goodput=goodput)

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Seconds of one optimizer step at a given total batch size."""
        model = self.model(gpu_type)
        if model is None:
            return batch / replicas
        atomic, accumulation = split_batch(batch, replicas, self.limits(gpu_type))
        return float(step_time.step_time(model.step_time, nodes, replicas, atomic, accumulation))

    def remaining_steps(self, batch: int) -> float:
        """Optimizer steps to the end at a given total batch size; inf if the end is not known."""
        return self._remaining / (batch * efficiency(*self._grad, batch / self._limits.initial))

    def remaining_work(self) -> float:
        """Work to the end; inf if it is not declared."""
        return self._remaining


@lru_cache(maxsize=1024)
def _grid_of(
    model: SpeedModel | None, limits: Batch, fixed: int | None, rows: int, columns: int
) -> FloatArray:
    """Goodput by (nodes told apart, replicas). Memoised: progress makes a new curve, not a new model."""
    grid = np.zeros((rows, columns))
    if model is None:
        replicas = np.arange(columns)
        grid[1:] = np.where(limits.per_gpu_min * replicas <= (fixed or limits.max), replicas, 0)
    elif columns > 1:
        nodes = step_time.node_rows(model.step_time)[: rows - 1, None]
        grid[1:, 1:] = best_batches(model, limits, nodes, np.arange(1, columns), fixed=fixed).goodput
    grid.flags.writeable = False
    return grid


class RigidCurve:
    """Implements ``Curve`` for a job without a model: it runs at the requested size or not at all.

    Its work is seconds at that size, and a "step" is a second of it.
    """

    fitted = True

    def __init__(self, *, spec: JobSpec, work_done: float = 0.0) -> None:
        self._requested = spec.requested
        self._remaining = math.inf if spec.duration_s is None else max(spec.duration_s - work_done, 0.0)

    @property
    def max_profiled_replicas(self) -> int:
        """The requested size: it is known, nothing beyond will be."""
        return self._requested

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> FloatArray:
        """1 at the requested size, 0 elsewhere."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        return np.asarray(
            (replicas == self._requested) & (nodes >= 1) & (nodes <= replicas), dtype=np.float64
        )

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """The script's own batch size, which nobody knows."""
        return BatchChoice(atomic_batch=1, accumulation=0, goodput=float(self.goodput(nodes, replicas)))

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """One second at the requested size, for ever elsewhere."""
        return 1.0 if replicas == self._requested else math.inf

    def remaining_steps(self, batch: int) -> float:
        """Seconds to the end."""
        return self._remaining

    def remaining_work(self) -> float:
        """Seconds to the end at the requested size; inf if it is not declared."""
        return self._remaining
