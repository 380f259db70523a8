"""The curve of a job of fixed size whose step rates are known by GPU type, alone and beside others on the same GPUs."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from coadapt.configure.best_batch import BatchChoice
from coadapt.errors import InvariantError
from coadapt.model import JobSpec
from coadapt.prediction.remaining.work import RemainingEvidence, RemainingWork, remaining


class StepRate(Protocol):
    """Steps per second."""

    def __call__(self, gpu_type: str, gpus: int, partner: str = "") -> float:
        """On so many GPUs of a type, beside a job with the profile ``partner`` if that is not empty; 0: it cannot run."""


class RateCurve:
    """Implements ``Curve``. Work is steps x batch size; policies that share GPUs or count steps ask for rates.

    Args:
        spec: specification of the job; its epochs are steps.
        rate: its step rates.
        done_steps: steps done so far.
    """

    fitted = True

    def __init__(self, *, spec: JobSpec, rate: StepRate, done_steps: float = 0.0) -> None:
        if spec.epochs is None or spec.requested_batch is None:
            raise InvariantError(f"job {spec.name!r} does not say its number of steps or its batch size")
        self._gpus, self._replicas, self._rate = spec.requested_gpus, spec.requested, rate
        self._batch = spec.requested_batch
        #: Steps to the end.
        self.steps_left = spec.epochs - done_steps

    def steps_per_s(self, gpu_type: str, partner: str = "") -> float:
        """Steps per second on GPUs of a type, beside a job with the profile ``partner`` if that is not empty."""
        return self._rate(gpu_type, self._gpus, partner)

    @property
    def max_profiled_replicas(self) -> int:
        """The requested size, the only one that is used."""
        return self._replicas

    def goodput(
        self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu"
    ) -> npt.NDArray[np.float64]:
        """Work per second at the requested size, 0 elsewhere."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        runs = (replicas == self._replicas) & (nodes >= 1) & (nodes <= replicas)
        return np.asarray(np.where(runs, self.steps_per_s(gpu_type) * self._batch, 0.0))

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """Returns the given batch size."""
        atomic = max(self._batch // max(replicas, 1), 1)
        return BatchChoice(
            atomic_batch=atomic, accumulation=0, goodput=float(self.goodput(nodes, replicas, gpu_type))
        )

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Seconds of a step, which does not depend on the batch size asked for."""
        rate = self.steps_per_s(gpu_type)
        return 1.0 / rate if rate and replicas == self._replicas else float("inf")

    def remaining_steps(self, batch: int, work: float | None = None) -> float:
        """Steps to the end."""
        return self.steps_left if work is None else work / self._batch

    def remaining_work(self) -> float:
        """Work to the end, as declared."""
        return max(self.steps_left * self._batch, 0.0)

    def remaining(self) -> RemainingWork:
        """The remaining work, as declared, with next to no spread."""
        left = self.remaining_work()
        return remaining(RemainingEvidence(done=0.0, declared=left))
