"""Where examples come from: any dataset, behind one question: the batches of this replica from a position of a pass on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from coadapt.errors import InputError
from coadapt.torch.order import order_of, pass_seed, sampler_order
from coadapt.torch.steps import Split, Step, plan, plan_at

#: Examples whose indices are taken from the order at once.
_SLICE = 4096


class Examples:
    """A dataset with a length and an index, read by PyTorch's own DataLoader (``options`` are its)."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        seed: int,
        shuffle: bool,
        sampler: Sampler[Any] | None,
        options: dict[str, Any],
    ) -> None:
        self.dataset, self.seed, self.shuffle, self.sampler = dataset, seed, shuffle, sampler
        self.options = options
        self._ordered: tuple[int, Sequence[int] | torch.Tensor] | None = None

    def length(self, number: int) -> int:
        """Examples in a pass."""
        return len(self.order(number))

    def order(self, number: int) -> Sequence[int] | torch.Tensor:
        """The order of a pass; the last one asked for is kept."""
        if self._ordered is None or self._ordered[0] != number:
            if self.sampler is not None:
                order: Sequence[int] | torch.Tensor = sampler_order(self.sampler, number, seed=self.seed)
            else:
                order = order_of(len(self.dataset), number, seed=self.seed, shuffle=self.shuffle)
            self._ordered = number, order
        return self._ordered[1]

    def batches(self, split: Split, rank: int, number: int, position: int) -> Iterator[Any]:
        """What ``rank`` computes on, backward pass by backward pass, to the end of the pass."""
        indices = _Indices(self.order(number), split, rank, number, position)
        generator = torch.Generator().manual_seed(pass_seed(self.seed, number))
        return iter(DataLoader(self.dataset, batch_sampler=indices, generator=generator, **self.options))


class _Indices:
    """A batch sampler: indices of one replica's backward passes."""

    def __init__(
        self, order: Sequence[int] | torch.Tensor, split: Split, rank: int, number: int, position: int
    ) -> None:
        self._order, self._split, self._rank = order, split, rank
        self._number, self._position = number, position

    def __iter__(self) -> Iterator[list[int]]:
        position, length, size = self._position, len(self._order), self._split.batch
        while position < length:
            # many steps at once: a small slice of a tensor costs as much as a large one
            begin, end = position, min(position + size * max(_SLICE // size, 1), length)
            # the last of them may be a larger one
            some = self._order[begin : end + self._split.double]
            order = some.tolist() if isinstance(some, torch.Tensor) else some
            while position < end:
                step = (
                    self._step(position, length)
                    if self._split.twice
                    else plan(self._split, self._rank, min(size, length - position))
                )
                for piece in step.pieces:
                    yield list(order[position - begin + piece.begin : position - begin + piece.end])
                position += step.batch

    def _step(self, position: int, length: int) -> Step:
        return plan_at(self._split, self._rank, number=self._number, position=position, length=length)


class Stream:
    """An IterableDataset: every replica reads the whole stream and keeps its part; a restart reads on from the start.

    It must yield the same examples in the same order on every replica and in every pass that is read again.
    """

    def __init__(
        self, dataset: IterableDataset[Any], *, length: int | None, collate: Callable[[Any], Any] | None
    ) -> None:
        if length is None:
            raise InputError("an IterableDataset has no length; say how many examples it yields by length=")
        self.dataset, self._length, self._collate = dataset, length, collate or default_collate

    def length(self, number: int) -> int:
        """As declared."""
        return self._length

    def batches(self, split: Split, rank: int, number: int, position: int) -> Iterator[Any]:
        """See ``Examples``."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        stream = itertools.islice(iter(self.dataset), position, None)
        while position < self._length:
            step = plan_at(split, rank, number=number, position=position, length=self._length)
            examples = list(itertools.islice(stream, step.batch))
            if len(examples) < step.batch:
                raise InputError(
                    f"the IterableDataset ended after {position + len(examples)} examples, not {self._length}; "
                    "correct length="
                )
            for piece in step.pieces:
                yield self._collate(examples[piece.begin : piece.end])
            position += step.batch
