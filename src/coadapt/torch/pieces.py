"""A pass of a model that can be made again in pieces, and its gradient: the same one, with less in memory at a time.

To autograd the pass is one node from the parameters to the outputs. Its backward pass asks ``Redo.gradients``, which uses the
graph of the whole pass if there is one, else computes piece after piece once more. Buffers are then as they were, and a piece
that was made in the forward pass has the same random numbers again. (Where only the backward pass did not fit, pieces
draw their own: with dropout, that one step's gradient is that of other masks.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as tree

from coadapt.torch import randomness

#: What a model may return besides tensors; whatever else may hide some.
_PLAIN = (int, float, str, type(None))


class Piece(NamedTuple):
    """Examples ``begin`` to ``end``, and the random generators as its forward pass found them, if it was made."""

    begin: int
    end: int
    generators: Any = None

    @property
    def size(self) -> int:
        """Examples."""
        return self.end - self.begin


class Redo:
    """One pass of ``module``. ``met(size)`` is told what did not fit, ``fit()`` that the whole pass did."""

    def __init__(
        self,
        module: nn.Module,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        *,
        fit: Callable[[], None],
        met: Callable[[int], None],
    ) -> None:
        self._module, self._inputs, self._fit, self._met = module, inputs, fit, met
        self.size = examples_in(inputs)
        asked = [leaf for leaf in tree.tree_leaves(inputs) if _differentiable(leaf)]
        self.sources = [*(p for p in module.parameters() if p.requires_grad), *asked]
        self._autocast = _autocast(self.sources[0].device.type) if self.sources else {}
        #: The outputs with the graph of the whole pass, if there is one; else the pieces.
        self._whole: list[Tensor] | None = None
        self._pieces: list[Piece] = []
        #: Which of the model's outputs, flattened, take part.
        self._taking_part: list[int] = []

    def guard(self, output: Any) -> Any:
        """The same ``output``, for whose backward pass this is responsible from here on."""
        leaves, shape = tree.tree_flatten(output)
        self._taking_part = [i for i, leaf in enumerate(leaves) if _differentiable(leaf)]
        seen = all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in leaves)
        if self.size is None or not seen or not self._taking_part:
            return output
        self._whole = [leaves[i] for i in self._taking_part]
        return tree.tree_unflatten(self._replaced(leaves), shape)

    def in_pieces(self, failure: Exception) -> Any:
        """What the model returns, made in pieces; ``failure`` again where it cannot be divided."""
        if self.size is None:
            raise failure
        made: list[Any] = []

        def forward(piece: Piece) -> Piece:
            piece = piece._replace(generators=randomness.generators())
            with torch.no_grad():
                made.append(self._run(piece))
            return piece

        self._pieces = self._divide(Piece(0, self.size), failure, forward)
        flat = [tree.tree_flatten(output) for output in made]
        leaves = [self._joined(parts, failure) for parts in zip(*(each[0] for each in flat), strict=True)]
        self._taking_part = [
            i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        return tree.tree_unflatten(self._replaced(leaves), flat[0][1])

    def gradients(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of all sources, given those of the outputs that take part."""
        assert self.size is not None
        sums: list[Tensor | None] = [None] * len(self.sources)

        def backward(piece: Piece) -> Piece:
            nonlocal sums
            found = self._piece_gradients(piece, grads)
            sums = [a if b is None else b if a is None else a + b for a, b in zip(sums, found, strict=True)]
            return piece

        if self._whole is not None:
            try:
                found = _grad(self._whole, self.sources, grads)
            except torch.OutOfMemoryError as error:
                failure = error.with_traceback(None)  # its frames hold what must be freed
            else:
                self._fit()
                return found
            self._whole = None
            self._divide(Piece(0, self.size), failure, backward)
        for piece in self._pieces:
            try:
                backward(piece)
            except torch.OutOfMemoryError as error:
                failure = error.with_traceback(None)
            else:
                continue
            self._divide(piece, failure, backward)
        return sums

    def _divide(self, piece: Piece, failure: Exception, make: Callable[[Piece], Piece]) -> list[Piece]:
        """``piece`` did not fit: makes its halves, and theirs; those that fit in the end."""
        if piece.size < 2:
            raise failure
        self._met(piece.size)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        middle, done = (piece.begin + piece.end) // 2, []
        for half in (Piece(piece.begin, middle), Piece(middle, piece.end)):
            try:
                done.append(make(half))
            except torch.OutOfMemoryError as error:
                failure = error.with_traceback(None)
            else:
                continue
            done += self._divide(half, failure, make)
        return done

    # -- one piece ---------------------------------------------------------------------------------------

    def _run(self, piece: Piece) -> Any:
        given, named = tree.tree_map(lambda leaf: self._cut(leaf, piece), self._inputs)
        return self._module(*given, **named)

    def _cut(self, leaf: Any, piece: Piece) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == self.size
        return leaf[piece.begin : piece.end] if whole else leaf

    def _piece_gradients(self, piece: Piece, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        # a loss among the outputs is a mean over examples: a piece has its share of it
        share = piece.size / (self.size or 1)
        parts = [
            grad if grad is None else self._cut(grad, piece) if grad.dim() > 0 else grad * share
            for grad in grads
        ]
        with _as_it_was(self._module, piece.generators):
            with torch.enable_grad(), torch.autocast(**self._autocast):
                leaves = tree.tree_leaves(self._run(piece))
            return _grad([leaves[i] for i in self._taking_part], self.sources, parts)

    def _joined(self, parts: tuple[Any, ...], failure: Exception) -> Any:
        if not isinstance(parts[0], Tensor):
            return parts[0]
        if parts[0].dim() == 0:
            shares = [piece.size / (self.size or 1) for piece in self._pieces]
            return torch.stack([part * share for part, share in zip(parts, shares, strict=True)]).sum()
        if any(part.shape[0] != piece.size for part, piece in zip(parts, self._pieces, strict=True)):
            raise failure  # its first dimension is not the examples: nobody knows how to join it
        return torch.cat(parts)

    def _replaced(self, leaves: list[Any]) -> list[Any]:
        outputs = [leaves[i] for i in self._taking_part]
        new = dict(zip(self._taking_part, _Node.apply(self, outputs, *self.sources), strict=True))
        return [new.get(i, leaf) for i, leaf in enumerate(leaves)]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, redo: Redo, outputs: list[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.redo = redo
        ctx.set_materialize_grads(False)
        return tuple(output.detach() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        redo, ctx.redo = ctx.redo, None
        return (None, None, *redo.gradients(grads))


def examples_in(inputs: Any) -> int | None:
    """The first dimension of the first tensor; None if there is none."""
    for leaf in tree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    return None


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _grad(
    outputs: Sequence[Tensor], sources: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    used = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    used = [(output, grad) for output, grad in used if output.requires_grad]
    if not used:
        return [None] * len(sources)
    outs, given = zip(*used, strict=True)
    return list(torch.autograd.grad(outs, list(sources), given, allow_unused=True))


def _autocast(device: str) -> dict[str, Any]:
    """What the script's own autocast is, for computing again outside of it."""
    return {
        "device_type": device,
        "enabled": torch.is_autocast_enabled(device),
        "dtype": torch.get_autocast_dtype(device),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }


@contextmanager
def _as_it_was(module: nn.Module, generators: Any) -> Iterator[None]:
    """Buffers and generators are afterwards what they are now; ``generators`` hold meanwhile, if given."""
    now = randomness.generators()
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    if generators is not None:
        randomness.restore(generators)
    try:
        yield
    finally:
        if generators is not None:
            randomness.restore(now)
        with torch.no_grad():
            for buffer, before in buffers:
                # a buffer that did not change may be in use by another graph, which must not find it touched
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
