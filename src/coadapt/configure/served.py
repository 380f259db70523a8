"""The curve of a job with parameter servers: Optimus' speed f(p, w) at the batch size its user asked for.

Statistical efficiency is left at 1: with parameter servers the batch size is given, not chosen, so work per
second is batch size times steps per second. Questions that do not name servers assume one per worker,
the ratio Optimus starts from.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coadapt.configure._base import BatchChoice, FloatArray
from coadapt.model import JobSpec
from coadapt.predict import parameter_server
from coadapt.predict.evidence import evidence_for
from coadapt.predict.remaining import RemainingEvidence, RemainingWork, declared_left, remaining


class ServerCurve:
    """Implements ``Curve`` and what Optimus asks besides: ``steps_per_s(servers, workers, batch)``."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        table: parameter_server.ServerTable,
        evidence: RemainingEvidence | None = None,
        prior: parameter_server.ServerParams | parameter_server.ServerPrior | None = None,
        method: parameter_server.Method = "ours",
    ) -> None:
        self._params = parameter_server.fit(table, prior, method=method)
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
        """How many different (servers, workers) were measured."""
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
        """The given batch size, split over the workers."""
        return BatchChoice(
            atomic_batch=max(math.ceil(self._batch / replicas), 1),
            accumulation=0,
            goodput=float(self.goodput(nodes, replicas)),
        )

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Seconds per step with as many servers as workers."""
        return 1.0 / self.steps_per_s(replicas, replicas, batch)

    def remaining_steps(self, batch: int) -> float:
        """Steps to the end; inf if the end is not known."""
        return self.remaining_work() / batch

    def remaining_work(self) -> float:
        """Work to the end; inf if it is not declared."""
        return declared_left(self._evidence)

    def remaining(self) -> RemainingWork:
        """Work to the end as far as all evidence tells it."""
        return remaining(self._evidence)
