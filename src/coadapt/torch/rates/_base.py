"""The interface of a learning-rate rule."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Progress(NamedTuple):
    """The progress of a job at a step."""

    #: Batch size over M0.
    scale: float
    #: (sqr, var) of the gradient at M0; (0, 0) while unknown.
    grad: tuple[float, float]
    #: Epochs of work done.
    epoch: float


class RateRule(Protocol):
    """Called before every optimizer step, on every replica, with the same progress: must be pure and cheap.

    A rule with ``steady = True`` depends on scale and grad only, and is called again only when they change.
    """

    def factor(self, progress: Progress) -> float:
        """The factor of the learning rate of every group in this step; 1 at M0 after any warm-up."""
