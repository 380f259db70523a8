"""The interface of a batch rule, which chooses the batch size of a job and how replicas share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from coadapt.model import Batch
from coadapt.prediction.step_time.step_table import StepTimeTable


class Situation(NamedTuple):
    """What is known when a batch size is chosen."""

    limits: Batch
    nodes: int
    replicas: int
    gpu_type: str
    #: Total batch size and accumulation at present; 0 before the first choice.
    batch: int
    atomic: int
    accumulation: int
    grad: tuple[float, float]
    table: StepTimeTable
    #: Epochs of work done.
    epoch: float
    #: Seconds per example of each replica, measured; empty while unknown.
    example_s: tuple[float, ...] = ()
    #: The metrics that the script reported last.
    metrics: Mapping[str, float] = {}
    #: The optimizer's present learning rate.
    rate: float = 0.0
    #: Every n-th step is larger at present; share of step time that samples may cost; seconds that a sample costs.
    twice: int = 0
    noise_budget: float = 0.02
    sample_s: float = 0.0
    #: Samples of the gradient noise so far; examples in a pass, 0 if not known.
    samples: int = 0
    length: int = 0


class Chosen(NamedTuple):
    """The choice, and its reason in one line."""

    batch: int
    #: Most examples in one backward pass.
    atomic: int
    #: Relative speeds of replicas; empty: equal shares.
    speeds: tuple[float, ...] = ()
    why: str = ""
    #: Make every n-th step larger, so that a single replica sees the gradient noise: see ``step_plan.Split``.
    twice: int = 0


class BatchRule(Protocol):
    """Called at the start of every epoch, after a resize and after a memory limit, on the first replica only."""

    def choose(self, now: Situation) -> Chosen:
        """The batch size from here on."""
