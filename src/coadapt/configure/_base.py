"""What configuring a job needs to know (SpeedModel), and what a policy gets to see of it (Curve)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from coadapt.model import Fact
from coadapt.predict.efficiency import efficiency
from coadapt.predict.noise import efficiency_over
from coadapt.predict.remaining import RemainingWork
from coadapt.predict.step_time import AnyParams, throughput

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int_]


class SpeedModel(Fact, frozen=True):
    """How fast one job gets on with its work on one GPU type: step time joined with efficiency."""

    step_time: AnyParams
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
        """Work per second = throughput x efficiency; arguments broadcast."""
        batch = np.asarray(replicas) * np.asarray(atomic) * (np.asarray(accumulation) + 1)
        examples_per_s = throughput(self.step_time, nodes, replicas, atomic, accumulation)
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
        """The batch size that reaches it: what the agent will choose on these GPUs."""

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Seconds of one optimizer step at a given total batch size."""

    def remaining_steps(self, batch: int) -> float:
        """Optimizer steps to the end at a given total batch size; inf if the end is not known."""

    def remaining_work(self) -> float:
        """Work to the end, as declared; inf if it is not."""

    def remaining(self) -> RemainingWork:
        """Work to the end as far as all evidence tells it: a distribution."""
