"""The speed model of a job (``SpeedModel``) and the protocol of the scaling curve that policies see (``Curve``)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from coadapt.model import Fact
from coadapt.prediction.gradient_noise import efficiency, efficiency_over
from coadapt.prediction.remaining.work import RemainingWork
from coadapt.prediction.step_time._base import FittedStepTime

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int_]


class SpeedModel(Fact, frozen=True):
    """The speed of one job on one GPU type: step time joined with efficiency."""

    step_time: FittedStepTime
    #: (grad_sqr, grad_var) at the reference batch size.
    grad: tuple[float, float]
    #: The reference batch size M0.
    initial_batch: int
    #: The batch size they were measured at, where the noise scale is to be carried to others; 0: taken as it is.
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
    #: Predicted work per second; 0 where the job cannot run on so many GPUs.
    goodput: float


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
        """Work to the end as far as all evidence tells it: a distribution."""
