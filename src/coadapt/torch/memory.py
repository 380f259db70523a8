"""Running out of memory is not the end: the batch is computed in halves, and the limit remembered.

The forward pass is where activations fill the memory. If it fails, it is made again in two halves, each of which keeps
only its input and is computed once more in the backward pass (activation checkpointing): the same
gradient, at half the activations. From the next step on no backward pass is that large.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils.checkpoint import checkpoint

log = logging.getLogger(__name__)


class MemoryLimit:
    """The most examples in one backward pass that are known not to fit, less one half; None while all did."""

    def __init__(self) -> None:
        self.atomic: int | None = None
        #: A limit that the other replicas have not been told yet.
        self.untold: int | None = None

    def met(self, error: Exception, given: Any, named: Any) -> None:
        """Notes the size that did not fit; raises ``error`` again where there is nothing to halve."""
        size = examples_in((given, named))
        if size is None or size < 2:
            raise error
        self.atomic = self.untold = min(size // 2, self.atomic or size)
        log.warning(
            "out of memory at %d examples in one pass; computed in halves, at most %d from now on",
            size,
            self.atomic,
        )


def examples_in(inputs: Any) -> int | None:
    """The first dimension of the first tensor; None if there is none."""
    for leaf in tree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    return None


def in_halves(model: Any, given: Any, named: Any) -> Any:
    """What ``model`` returns, computed in two halves (more, where a half does not fit either)."""
    size = examples_in((given, named))
    assert size is not None
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    outputs = []
    for begin, end in ((0, size // 2), (size // 2, size)):
        part_given, part_named = _cut((given, named), size, begin, end)
        try:
            outputs.append(checkpoint(model, *part_given, use_reentrant=False, **part_named))
        except torch.OutOfMemoryError:
            if end - begin < 2:
                raise
            outputs.append(in_halves(model, part_given, part_named))
    return tree.tree_map(lambda *parts: _joined(parts), *outputs)


def _cut(inputs: Any, size: int, begin: int, end: int) -> Any:
    def cut(leaf: Any) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == size
        return leaf[begin:end] if whole else leaf

    return tree.tree_map(cut, inputs)


def _joined(parts: Any) -> Any:
    if not isinstance(parts[0], Tensor):
        return parts[0]
    # a loss inside the model's output is a mean over examples: the mean of equal halves
    return torch.cat(parts) if parts[0].dim() > 0 else torch.stack(parts).mean()
