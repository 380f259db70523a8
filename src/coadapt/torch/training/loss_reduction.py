"""Finds a loss that is a sum over the batch: its gradient would be divided by the number of replicas.

Gradients of replicas and passes are averaged by examples, which is the gradient of the whole step only if the loss is a mean. The reduction stands
in the autograd graph between the loss and the model's output: losses of PyTorch save it, sums and means are operations
of their own. Looked at in the first backward passes, from within them.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

from torch import Tensor

#: ``reduction="sum"`` as losses save it.
_SUM = 2
_MOST_NODES = 200


class Reduction(NamedTuple):
    """How a loss is reduced over the batch."""

    #: The operation that sums; empty if there is none, or something divides by the batch.
    operation: str
    #: Whether a product with a tensor may have normalised the sum.
    weighted: bool


def present_loss() -> Tensor | None:
    """The tensor whose ``backward()`` is running; None if it cannot be seen."""
    frames = sys._current_frames()
    frame = frames.get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "backward" and frame.f_code.co_filename.endswith("_tensor.py"):
            loss = frame.f_locals.get("self")
            return loss if isinstance(loss, Tensor) else None
        frame = frame.f_back
    return None


def reduction_of(loss: Tensor, outputs: list[Tensor], examples: int) -> Reduction:
    """The reduction between ``loss`` and ``outputs``, the output of the model for ``examples`` examples."""
    ends = {output.grad_fn for output in outputs}
    found = [_along(loss.grad_fn, ends, examples, depth=0)]
    sums = [each for each in found if each is not None and each.operation]
    return sums[0] if sums else Reduction("", False)


def _along(node: Any, ends: set[Any], examples: int, depth: int) -> Reduction | None:
    """The reduction on the paths from ``node`` to ``ends``; None if it does not lead there."""
    if node in ends:
        return Reduction("", False)
    if node is None or depth > _MOST_NODES:
        return None
    below = [_along(next_node, ends, examples, depth + 1) for next_node, _ in node.next_functions]
    reached = [each for each in below if each is not None]
    if not reached:
        return None
    inner = next((each for each in reached if each.operation), reached[0])
    name = type(node).__name__
    saved = getattr(node, "_saved_reduction", None)
    if saved == _SUM or name.startswith("SumBackward"):
        return Reduction(
            name.partition("Backward")[0] + ("" if saved is None else " with reduction='sum'"), inner.weighted
        )
    if name.startswith(("MeanBackward", "DivBackward")) or saved == 1:
        # divided by less than the batch: accumulation of the script, or a temperature
        divisor = _scalar(node)
        if name.startswith("DivBackward") and divisor is not None and abs(divisor) < examples:
            return inner
        return Reduction("", False)
    if name.startswith("MulBackward"):
        return inner._replace(weighted=True)
    return inner


def _scalar(node: Any) -> float | None:
    """The number that a division divides by; None if it is not one number, or was freed: its backward pass is over."""
    try:
        other = getattr(node, "_saved_other", None)
    except RuntimeError:
        return None
    if isinstance(other, Tensor):
        return float(other) if other.numel() == 1 else None
    return float(other) if isinstance(other, (int, float)) else None
