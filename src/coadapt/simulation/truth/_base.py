"""The ground truth of a job, which only the simulated executor may ask.

Measured tables (``measured_tables``) and the shipped formulas (``profiles``) answer the same questions. A
scheduler never sees a ``Truth``; it learns from the measurements the executor derives from one.

Units: batch sizes in examples; progress in scale-invariant iterations, i.e. optimizer steps at the
reference batch size M0 (progress x M0 is work); times in seconds. Epochs are epochs of *work*,
counted from 0.
"""

from __future__ import annotations

from typing import Protocol

from coadapt.configure.best_batch import split_batch
from coadapt.model import Batch
from coadapt.prediction.gradient_noise import gain

#: Names that mean "whichever type there is": a cluster written without types, and a share without one.
ANY_GPU = ("", "gpu")


class Truth(Protocol):
    """The true behaviour of a job in the simulator. Answers never change, so callers may cache them."""

    @property
    def epochs(self) -> int:
        """Epochs of work until the job is done."""
        ...

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types it can run on. If there is only one, it answers for every type's name."""
        ...

    @property
    def max_workers(self) -> int:
        """The largest number of replicas that the truth covers."""
        ...

    @property
    def data_size(self) -> int:
        """Examples in the data; one epoch of work at M0 is one pass over them."""
        ...

    def limits(self, gpu_type: str) -> Batch:
        """Bounds of the batch size; ``initial`` is M0."""
        ...

    def epoch_marks(self) -> tuple[float, ...]:
        """Cumulative progress at the end of each epoch; as many as ``epochs``."""
        ...

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        """(step_s, sync_s) of one optimizer step; ``shape`` = workers per node, sync is part of the step."""
        ...

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """(grad_sqr, grad_var) in that epoch, for M0: noise scale phi = M0 * grad_var / grad_sqr."""
        ...

    def steps_until(self, batch: int, epoch: int) -> float:
        """Real optimizer steps at this total batch size until the end of that epoch (for oracles)."""
        ...

    def metric(self, batch: int, epoch: int) -> float | None:
        """The validation metric at the end of that epoch; None where none was measured."""
        ...


def packed(replicas: int, gpus_per_node: int) -> tuple[int, ...]:
    """Returns the replicas per node of a packed placement: full nodes, then one node with the rest."""
    full, rest = divmod(replicas, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())


def solo_time_s(
    truth: Truth, replicas: int, batch: int, *, gpus_per_node: int = 4, gpu_type: str = ""
) -> float:
    """Returns the seconds from start to finish of a job that runs alone, at a fixed size, on as few nodes as possible.

    Args:
        truth: Ground truth of the job's profile.
        replicas: Number of workers.
        batch: Total batch size.
        gpus_per_node: GPUs of a node.
        gpu_type: Type of the GPUs.
    """
    atomic, accumulation = split_batch(batch, replicas, truth.limits(gpu_type))
    step_s, sync_s = truth.step(packed(replicas, gpus_per_node), atomic, gpu_type)
    update_s = step_s + accumulation * (step_s - sync_s)
    scale = replicas * atomic * (accumulation + 1) / truth.limits(gpu_type).initial
    total, done = 0.0, 0.0
    for epoch, mark in enumerate(truth.epoch_marks()):
        total += (mark - done) / gain(*truth.gradients(batch, epoch), scale) * update_s
        done = mark
    return total
