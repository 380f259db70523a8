"""The contract of a batch rule: which batch size a job should have, and who computes how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from coadapt.model import Batch
from coadapt.predict.step_table import StepTimeTable


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
    #: What the script has reported last.
    metrics: Mapping[str, float] = {}
    #: The optimizer's present learning rate.
    rate: float = 0.0
    #: Once in so many steps one is larger at present; share of a step's time that samples may cost; seconds that one takes.
    twice: int = 0
    noise_budget: float = 0.02
    sample_s: float = 0.0
    #: Samples of the noise so far; examples of a pass, 0 where not known.
    samples: int = 0
    length: int = 0


class Chosen(NamedTuple):
    """The answer, and why in one line."""

    batch: int
    #: Most examples in one backward pass.
    atomic: int
    #: Relative speeds of replicas where shares are to be uneven.
    speeds: tuple[float, ...] = ()
    why: str = ""
    #: Once in so many steps one is to have two passes, so that a lone replica sees the noise of gradients: see ``steps.Split``.
    twice: int = 0


class BatchRule(Protocol):
    """Asked at the start, after every epoch, and after a resize, on the first replica only; others are told."""

    def choose(self, now: Situation) -> Chosen:
        """The batch size from here on."""
