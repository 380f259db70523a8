"""The gradient of a step from its backward passes, weighted and summed over replicas; and its norms in sampled steps.

The training script calls ``loss.backward()`` once for every batch of the loader. The work at the end of that call runs in a callback
of the autograd engine, so that whatever the script does next (unscale, clip, step) sees the finished gradient. The gradient of
an unfinished step is held aside, where the script's clipping and ``zero_grad`` cannot reach it. A plain step (one pass, equal
shares, no norms) needs none of this. ``NormCollector`` takes the squared norms of a step's parts and of their average, from which
``noise_scale`` estimates the gradient noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.errors import InputError
from coadapt.torch.elastic import random_state
from coadapt.torch.sync._base import Sync
from coadapt.torch.training.step_plan import Piece, Step


class StepNorms(NamedTuple):
    """Squared norms of a sampled step on one replica: ``sum_sqr`` over its own parts, ``total_sqr`` of the whole gradient."""

    sum_sqr: float
    total_sqr: float
    batch: int
    parts: int
    mean_inverse: float
    successive: bool = False


def sqr_norm(gradients: Sequence[Tensor], divisors: Sequence[Tensor] | None, loss_scale: float) -> float:
    """Squared norm of gradients, divided by ``divisors`` (Adam's) element by element and by the scale of the loss."""
    if not gradients:
        return 0.0
    if divisors is not None:
        gradients = torch._foreach_div(list(gradients), list(divisors))
    if _dot_is_faster(gradients):
        return _dot(gradients, gradients) / loss_scale**2
    norms = torch.stack([norm.double() for norm in torch._foreach_norm(list(gradients))])
    return float(norms.square().sum()) / loss_scale**2


def _dot_is_faster(gradients: Sequence[Tensor]) -> bool:
    """Whether a dot product is the fastest norm: on a CPU it takes half the time of the fused operations."""
    return all(g.device.type == "cpu" and g.dtype in (torch.float32, torch.float64) for g in gradients)


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    pairs = zip(one, other, strict=True)
    return sum(float(torch.dot(a.reshape(-1), b.reshape(-1))) for a, b in pairs)


class NormCollector:
    """Collects the norms of one sampled step, or of two successive ones where a step has only one part."""

    def __init__(self) -> None:
        self.observed: StepNorms | None = None
        #: Whether every step is sampled: then each also forms a pair with the next.
        self.chained = False
        self._sum_sqr = 0.0
        self._before: tuple[list[Tensor], int] | None = None

    @property
    def wants_another(self) -> bool:
        """Whether the step after a sampled one must be sampled too."""
        return self._before is not None

    def skip(self) -> None:
        """A step was not sampled: the next sampled one has no predecessor."""
        self._before = None

    def add_part(self, sqr: float) -> None:
        """Add the squared norm of a part of this step."""
        self._sum_sqr += sqr

    def finish(
        self, step: Step, gradient: Sequence[Tensor], divisors: Sequence[Tensor] | None, loss_scale: float
    ) -> None:
        """The step is complete.

        Args:
            step: Its plan.
            gradient: The weighted average of its parts over all replicas.
            divisors: What the optimizer divides gradients by; None: nothing.
            loss_scale: The factor of a GradScaler.
        """
        sum_sqr, self._sum_sqr = self._sum_sqr, 0.0
        if step.parts > 1:
            self._before = None
            total = sqr_norm(gradient, divisors, loss_scale)
            self.observed = StepNorms(sum_sqr, total, step.batch, step.parts, step.mean_inverse)
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

    def take(self) -> StepNorms | None:
        """Return and forget the norms, if they are complete."""
        observed, self.observed = self.observed, None
        return observed

    def forget(self) -> None:
        """Discard everything: the batch size or the replicas have changed."""
        self.observed, self._before, self._sum_sqr = None, None, 0.0


def _successive(
    one: tuple[list[Tensor], int],
    other: tuple[Sequence[Tensor], int],
    divisors: Sequence[Tensor] | None,
    loss_scale: float,
) -> StepNorms:
    """Norms of two successive gradients and their average: ``one`` is our copy, unscaled; ``other`` is about to be used."""
    batch = one[1] + other[1]
    first, second = sqr_norm(one[0], divisors, 1.0), sqr_norm(other[0], divisors, loss_scale)
    share = one[1] / batch, other[1] / batch
    if divisors is None and _dot_is_faster(one[0]):
        product = 2 * share[0] * share[1] * _dot(one[0], other[0]) / loss_scale
        total = share[0] ** 2 * first + share[1] ** 2 * second + product
    else:
        torch._foreach_mul_(one[0], share[0])
        torch._foreach_add_(one[0], list(other[0]), alpha=share[1] / loss_scale)
        total = sqr_norm(one[0], divisors, 1.0)
    mean_inverse = (1 / one[1] + 1 / other[1]) / 2
    return StepNorms(first + second, total, batch, 2, mean_inverse, successive=True)


#: Returns what gradients are divided by before their norms are taken; None: nothing.
Preconditioner = Callable[[], Sequence[Tensor] | None]


class Gradients:
    """Gradients of one optimizer's parameters. ``loss_scale`` returns the factor of a GradScaler, ``precondition`` Adam's divisors."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        precondition: Preconditioner = lambda: None,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.parameters = list(parameters)
        #: Whether several replicas exchange gradients at every step.
        self.shared = False
        #: Steps to come whose gradients are exchanged by us even where DDP could: they show which parameters are used.
        self.trial = 0
        #: Whether some parameter has no gradient on some replica.
        self.partly_used = False
        #: Called once with the parameters that had no gradient on any replica, or not on all.
        self.unused: Callable[[list[Tensor]], None] = lambda parameters: None
        #: Called in the first backward passes with the outputs of the model and their number of examples; None: not any more.
        self.on_output_gradient: Callable[[list[Tensor], int], bool] | None = None
        #: The gradient of this step is not to be used: every number of it becomes NaN on all replicas.
        self.void = False
        self.sync: Sync | None = None
        self.norms = NormCollector()
        #: When the last backward pass without overlap ended, before the exchange.
        self.computed_at = 0.0
        #: Cost of sampling this step: norms, copies, and an exchange without overlap.
        self.cost_s = 0.0
        #: The clock of costs: see ``TrainingLoop.attach``.
        self.cost_clock: Callable[[], float] = time.perf_counter
        self.watching = False
        #: Whether the model runs without synchronisation, in a dry run; the model's buffers.
        self.alone = False
        self.buffers: Callable[[], Iterable[Tensor]] = tuple
        self._precondition, self._loss_scale = precondition, loss_scale
        #: Sum of the passes so far, and the parameters it belongs to: those that had a gradient in the first pass.
        self._aside: list[Tensor] | None = None
        self._used: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._step: Step | None = None
        self._piece: Piece | None = None
        self._sampled = self._overlapping = self._queued = self._passed = False

    def open(self, step: Step, piece: Piece, sampled: bool) -> None:
        """The next backward pass is ``piece`` of ``step``."""
        assert self.sync is not None, "job.prepare() comes first"
        first = piece is step.pieces[0]
        # the script skipped a pass of this step: a sum without it is not the gradient of the step
        void = not first and (self.void or (self.watching and not self._passed))
        alone = len(step.pieces) == 1
        by_itself = step.even and not sampled and self.sync.overlaps and not self.trial
        self.watching = not (alone and by_itself)
        self._overlapping = by_itself and piece.last
        self.sync.overlap(self._overlapping)
        self._step, self._piece, self._sampled = step, piece, sampled
        self._queued = self._passed = False
        if not sampled:
            self.norms.skip()
        self.void = void
        if first:
            self._aside, self.cost_s = None, 0.0

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Random generators and buffers are those before, afterwards."""
        generators = random_state.generators()
        buffers = [(buffer, buffer.clone()) for buffer in self.buffers()]
        try:
            yield
        finally:
            random_state.restore(generators)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """A backward pass inside leaves no trace. The model runs without synchronisation: other replicas may do something else."""
        self.watching, self.alone, self._piece = False, True, None
        try:
            with self.unchanged():
                yield
        finally:
            self.alone = False
            for parameter in self.parameters:
                parameter.grad = None

    def watch(self, output: Any) -> None:
        """Called with the output of the model: the backward pass begins at its tensors."""
        tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        for tensor in tensors:
            tensor.register_hook(self._begun)
        self._outputs = tensors if self.on_output_gradient is not None else []

    @property
    def overlapping(self) -> bool:
        """Whether DDP averages in the backward pass of the present batch."""
        return self._overlapping

    @property
    def passed(self) -> bool | None:
        """Whether the backward pass of the present batch is over; None if it is not watched."""
        return self._passed if self.watching else None

    def use(self, parameters: Sequence[Tensor]) -> None:
        """The optimizer trains ``parameters`` from now on."""
        self.parameters = list(parameters)
        self.norms.forget()

    def close(self) -> None:
        """The optimizer is about to step. Raises an error if no backward pass came through the model."""
        self._check_passed()
        self._piece = None

    def _check_passed(self) -> None:
        if self.watching and self._piece is not None and not self._passed:
            raise InputError(
                "no backward pass went through the prepared model since the last batch: compute the loss from the model that "
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
        if self.on_output_gradient is not None and self._piece is not None and not self.void:
            outputs, self._outputs = self._outputs, []
            if not self.on_output_gradient(outputs, self._piece.end - self._piece.begin):
                self.on_output_gradient = None
        if self._overlapping and self._aside is not None:
            self._put_back()
        torch.autograd.Variable._execution_engine.queue_callback(self._over)

    def _over(self) -> None:
        """The pass has ended. If DDP averages, its own callback is still to come: ours is queued again behind it."""
        if self._overlapping:
            torch.autograd.Variable._execution_engine.queue_callback(self._averaged)
        else:
            self._computed()

    def _put_back(self) -> None:
        """Restore the sum of the passes before: the last one adds to it, and DDP averages the result."""
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
        self.computed_at, began = time.perf_counter(), self.cost_clock()
        piece, step = self._piece, self._step
        grads = self._own_gradients()
        if self._sampled and piece.weight > 0 and step.parts > 1:
            self.norms.add_part(sqr_norm(grads, self._divisors(), self._loss_scale()))
        # DDP averages the sum of passes with equal weights: they are not weighted here
        weight = 1.0 if self._plain_sum() else piece.weight
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
            self.cost_s += self.cost_clock() - began

    def _plain_sum(self) -> bool:
        """Whether DDP averages this step with equal weights."""
        assert self._step is not None
        assert self.sync is not None
        return self._step.even and not self._sampled and self.sync.overlaps and not self.trial

    def _whole(self) -> None:
        assert self._aside is not None
        assert self._step is not None
        assert self.sync is not None
        if self.void:
            torch._foreach_mul_(self._aside, float("nan"))
        self.sync.exchange(self._aside)
        self.trial = max(self.trial - 1, 0)
        if len(self._step.pieces) > 1 or self.shared:
            for parameter, gradient in zip(self._used, self._aside, strict=True):
                parameter.grad = gradient
        if self._sampled:
            self.norms.finish(self._step, self._aside, self._divisors(), self._loss_scale())
        self._aside = None

    # -- which parameters -------------------------------------------------------------------------------

    def _own_gradients(self) -> list[Tensor]:
        if self._aside is None:
            self._used = self._used_now()
            if any(p.grad.is_sparse for p in self._used):
                raise InputError("sparse gradients are not supported; make the embedding with sparse=False")
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._used]

    def _used_now(self) -> list[Tensor]:
        """Parameters that have a gradient on some replica: all replicas exchange the same ones."""
        by_ddp = self._step is not None and len(self._step.pieces) > 1 and self._plain_sum()
        if not self.shared or by_ddp:
            return [p for p in self.parameters if p.grad is not None]
        if not self.trial and not self.partly_used:
            return self.parameters
        used = torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.int32)
        dist.all_reduce(used)
        counts, everywhere = used.tolist(), dist.get_world_size()
        if min(counts) < everywhere and not self.partly_used:
            self.partly_used = True
            self.unused([p for p, c in zip(self.parameters, counts, strict=True) if c < everywhere])
        return [p for p, count in zip(self.parameters, counts, strict=True) if count]

    def _divisors(self) -> Sequence[Tensor] | None:
        divisors = self._precondition()
        if divisors is None or len(self._used) == len(self.parameters):
            return divisors
        used = {id(p) for p in self._used}
        return [d for p, d in zip(self.parameters, divisors, strict=True) if id(p) in used]


def tensors_in(output: Any) -> list[Tensor]:
    """All tensors in the output of a model."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    elif hasattr(output, "__dataclass_fields__"):
        output = [getattr(output, name) for name in output.__dataclass_fields__]
    if isinstance(output, (list, tuple)):
        return [tensor for each in output for tensor in tensors_in(each)]
    return []
