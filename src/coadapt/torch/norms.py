"""Squared norms of gradients, as the noise scale needs them: of a step's parts and of their average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coadapt.torch.steps import Step


class Observed(NamedTuple):
    """What one replica saw of a sampled step. ``sum_sqr`` is over its own parts, ``total_sqr`` of the whole gradient."""

    sum_sqr: float
    total_sqr: float
    batch: int
    parts: int
    mean_inverse: float
    successive: bool = False


def sqr_norm(gradients: Sequence[Tensor], divisors: Sequence[Tensor] | None, loss_scale: float) -> float:
    """Squared norm of gradients over their divisors (Adam's), as if the loss had not been scaled."""
    if not gradients:
        return 0.0
    if divisors is not None:
        gradients = torch._foreach_div(list(gradients), list(divisors))
    if _plain_numbers(gradients):
        return _dot(gradients, gradients) / loss_scale**2
    norms = torch.stack([norm.double() for norm in torch._foreach_norm(list(gradients))])
    return float(norms.square().sum()) / loss_scale**2


def _plain_numbers(gradients: Sequence[Tensor]) -> bool:
    """Whether a product of vectors is the quickest norm: on a CPU, where nothing is fused, in half the time."""
    return all(g.device.type == "cpu" and g.dtype in (torch.float32, torch.float64) for g in gradients)


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    pairs = zip(one, other, strict=True)
    return sum(float(torch.dot(a.reshape(-1), b.reshape(-1))) for a, b in pairs)


class Norms:
    """Collects the norms of one sampled step; of two in a row where a step has only one part."""

    def __init__(self) -> None:
        self.observed: Observed | None = None
        #: Whether every step is sampled, so that each is also the first of a pair with the next.
        self.chained = False
        self._sum_sqr = 0.0
        self._before: tuple[list[Tensor], int] | None = None

    @property
    def wants_another(self) -> bool:
        """Whether the step after a sampled one must be sampled too."""
        return self._before is not None

    def skip(self) -> None:
        """A step is not sampled: the next one that is has no predecessor."""
        self._before = None

    def add_part(self, sqr: float) -> None:
        """Another part of this step, by its squared norm."""
        self._sum_sqr += sqr

    def finish(
        self, step: Step, gradient: Sequence[Tensor], divisors: Sequence[Tensor] | None, loss_scale: float
    ) -> None:
        """The step is whole; ``gradient`` is what all parts came to."""
        sum_sqr, self._sum_sqr = self._sum_sqr, 0.0
        if step.parts > 1:
            self._before = None
            total = sqr_norm(gradient, divisors, loss_scale)
            self.observed = Observed(sum_sqr, total, step.batch, step.parts, step.mean_inverse)
            return
        before, self._before = self._before, None
        paired = before is not None and len(before[0]) == len(gradient)
        if before is not None and paired:
            self.observed = _successive(before, (gradient, step.batch), divisors, loss_scale)
        if not paired or self.chained:
            copy = [g.clone() for g in gradient]
            if loss_scale != 1.0:
                torch._foreach_div_(copy, loss_scale)
            self._before = copy, step.batch

    def take(self) -> Observed | None:
        """What was observed, once."""
        observed, self.observed = self.observed, None
        return observed

    def forget(self) -> None:
        """Whatever was begun: the batch size or the replicas have changed."""
        self.observed, self._before, self._sum_sqr = None, None, 0.0


def _successive(
    one: tuple[list[Tensor], int],
    other: tuple[Sequence[Tensor], int],
    divisors: Sequence[Tensor] | None,
    loss_scale: float,
) -> Observed:
    """``one`` is a copy of our own, free of the loss's scale; ``other`` the gradient that is about to be used."""
    batch = one[1] + other[1]
    first, second = sqr_norm(one[0], divisors, 1.0), sqr_norm(other[0], divisors, loss_scale)
    share = one[1] / batch, other[1] / batch
    if divisors is None and _plain_numbers(one[0]):
        product = 2 * share[0] * share[1] * _dot(one[0], other[0]) / loss_scale
        total = share[0] ** 2 * first + share[1] ** 2 * second + product
    else:
        torch._foreach_mul_(one[0], share[0])
        torch._foreach_add_(one[0], list(other[0]), alpha=share[1] / loss_scale)
        total = sqr_norm(one[0], divisors, 1.0)
    mean_inverse = (1 / one[1] + 1 / other[1]) / 2
    return Observed(first + second, total, batch, 2, mean_inverse, successive=True)
