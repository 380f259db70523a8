"""The gradient of a step from its backward passes: weighted, summed over replicas, exact; and its norms where asked.

The training script calls ``loss.backward()`` once for every batch the loader yields. What must happen at the end of that
call happens in a callback of the autograd engine, so that whatever the script does next (unscale, clip, step)
sees the finished gradient. The gradient of an unfinished step is put aside: the script's clipping and ``zero_grad`` find
nothing to spoil. A plain step (one pass, equal shares, no norms wanted) runs without any of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from coadapt.errors import InputError
from coadapt.torch import randomness
from coadapt.torch.norms import Norms, sqr_norm
from coadapt.torch.steps import Piece, Step
from coadapt.torch.sync import Sync

#: What the norms are taken of is divided by these first; None: taken as it is.
Preconditioner = Callable[[], Sequence[Tensor] | None]


class Gradients:
    """Gradients of one optimizer's parameters. ``loss_scale`` tells by what a GradScaler has multiplied them."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        precondition: Preconditioner = lambda: None,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.parameters = list(parameters)
        self.sync: Sync | None = None
        self.norms = Norms()
        #: When the last backward pass of a step that did not overlap was over.
        self.computed_at = 0.0
        #: What sampling this step has cost: norms, copies, and an exchange that did not overlap.
        self.cost_s = 0.0
        #: By which clock: see ``Loop.take``.
        self.spent: Callable[[], float] = time.perf_counter
        self.watching = False
        #: Whether the model is to run without synchronisation, and what of it is not trained but changes.
        self.alone = False
        self.buffers: Callable[[], Iterable[Tensor]] = tuple
        self._precondition, self._loss_scale = precondition, loss_scale
        #: Sum of the passes so far, and the parameters it belongs to: those the first pass has reached.
        self._aside: list[Tensor] | None = None
        self._used: list[Tensor] = []
        self._step: Step | None = None
        self._piece: Piece | None = None
        self._sampled = self._overlapping = self._queued = self._passed = False

    def open(self, step: Step, piece: Piece, sampled: bool) -> None:
        """The next backward pass will be ``piece`` of ``step``."""
        assert self.sync is not None, "prepare comes first"
        self._check_passed()
        alone = len(step.pieces) == 1
        by_itself = step.even and not sampled and self.sync.overlaps
        self.watching = not (alone and by_itself)
        self._overlapping = by_itself and piece.last
        self.sync.overlap(self._overlapping)
        self._step, self._piece, self._sampled = step, piece, sampled
        self._queued = self._passed = False
        if not sampled:
            self.norms.skip()
        if piece is step.pieces[0]:
            self._aside, self.cost_s = None, 0.0

    @contextmanager
    def dry(self) -> Iterator[None]:
        """A backward pass that leaves nothing behind; the model runs alone, whatever the others do meanwhile."""
        self.watching, self.alone, self._piece = False, True, None
        generators = randomness.generators()
        buffers = [(buffer, buffer.clone()) for buffer in self.buffers()]
        try:
            yield
        finally:
            self.alone = False
            randomness.restore(generators)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for parameter in self.parameters:
                parameter.grad = None

    def watch(self, output: Any) -> None:
        """Called with whatever the model has returned: the backward pass begins at its tensors."""
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._begun)

    def close(self) -> None:
        """The optimizer is about to step: says so if no backward pass came through the model."""
        self._check_passed()
        self._piece = None

    def _check_passed(self) -> None:
        if self.watching and self._piece is not None and not self._passed:
            raise InputError(
                "no gradient came through the prepared model since the last batch: compute the loss from the model that "
                "job.prepare() returned, and call loss.backward() once for every batch of the loader"
            )

    # -- inside the backward pass --------------------------------------------------------------------

    def _begun(self, gradient: Tensor) -> None:
        if self._queued:
            return
        if self._passed:
            raise InputError(
                "two backward passes for one batch of the loader are not supported; add the losses"
            )
        self._queued = True
        if self._overlapping and self._aside is not None:
            self._put_back()
        torch.autograd.Variable._execution_engine.queue_callback(self._over)

    def _over(self) -> None:
        """End of the pass. DDP's own callback is still to come if it averages, so ours is queued once more behind it."""
        if self._overlapping:
            torch.autograd.Variable._execution_engine.queue_callback(self._averaged)
        else:
            self._computed()

    def _put_back(self) -> None:
        """The passes before, so that the last one adds to them and DDP averages their sum."""
        for parameter, sum_so_far in zip(self._used, self._aside or (), strict=True):
            parameter.grad = sum_so_far if parameter.grad is None else parameter.grad.add_(sum_so_far)

    def _averaged(self) -> None:
        assert self._step is not None
        self._queued, self._passed, self._aside = False, True, None
        grads = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(grads, 1 / len(self._step.pieces))

    def _computed(self) -> None:
        assert self._step is not None
        assert self._piece is not None
        assert self.sync is not None
        self._queued, self._passed = False, True
        self.computed_at, began = time.perf_counter(), self.spent()
        piece, step = self._piece, self._step
        grads = self._own_gradients()
        if self._sampled and piece.weight > 0 and step.parts > 1:
            self.norms.add_part(sqr_norm(grads, self._divisors(), self._loss_scale()))
        # a step that DDP will finish wants the plain sum of its passes: equal weights come with the average
        plain_sum = step.even and not self._sampled and self.sync.overlaps
        weight = 1.0 if plain_sum else piece.weight
        if self._aside is not None:
            torch._foreach_add_(self._aside, grads, alpha=weight)
        else:
            if weight != 1.0:
                torch._foreach_mul_(grads, weight)
            self._aside = grads
        if piece.last:
            self._whole()
        else:
            for parameter in self.parameters:
                parameter.grad = None
        if self._sampled:
            self.cost_s += self.spent() - began

    def _whole(self) -> None:
        assert self._aside is not None
        assert self._step is not None
        assert self.sync is not None
        self.sync.exchange(self._aside)
        if len(self._step.pieces) > 1:
            for parameter, gradient in zip(self._used, self._aside, strict=True):
                parameter.grad = gradient
        if self._sampled:
            self.norms.finish(self._step, self._aside, self._divisors(), self._loss_scale())
        self._aside = None

    # -- which parameters -------------------------------------------------------------------------------

    def _own_gradients(self) -> list[Tensor]:
        if self._aside is None:
            self._used = [p for p in self.parameters if p.grad is not None]
            if any(p.grad.is_sparse for p in self._used):
                raise InputError("sparse gradients are not supported; make the embedding with sparse=False")
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._used]

    def _divisors(self) -> Sequence[Tensor] | None:
        divisors = self._precondition()
        if divisors is None or len(self._used) == len(self.parameters):
            return divisors
        used = {id(p) for p in self._used}
        return [d for p, d in zip(self.parameters, divisors, strict=True) if id(p) in used]


def _tensors(output: Any) -> list[Tensor]:
    """All tensors in what a model returned."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    elif hasattr(output, "__dataclass_fields__"):
        output = [getattr(output, name) for name in output.__dataclass_fields__]
    if isinstance(output, (list, tuple)):
        return [tensor for each in output for tensor in _tensors(each)]
    return []
