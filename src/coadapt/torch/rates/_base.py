"""The contract of a learning-rate rule."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Progress(NamedTuple):
    """Where a job stands when a step is made."""

    #: Batch size over M0.
    scale: float
    #: (sqr, var) of the gradient at M0; (0, 0) while unknown.
    grad: tuple[float, float]
    #: Epochs of work done.
    epoch: float


class RateRule(Protocol):
    """Called before every optimizer step, on every replica, with the same progress: must be pure and cheap.

    One that has ``steady = True`` looks at scale and grad only, and is asked again only when they change.
    """

    def factor(self, progress: Progress) -> float:
        """What the learning rate of every group is multiplied by for this step; 1 at M0 after any warm-up."""
