"""Which examples make up one optimizer step, and who computes what of it. Pure.

Examples stand in one order for the whole pass; a step takes the next ones, replica after replica, pass after pass.
So the examples of a step do not depend on how many replicas share them. A replica's gradients are weighted by
examples: the sum over all backward passes of all replicas is the gradient of the whole step, exactly, whatever the shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

#: Steps of which one may be larger than the others, at least: two such never meet, and most are as they are timed.
OFTEN = 3


class Split(NamedTuple):
    """How a batch is shared: examples per replica (their sum is the batch size), and the most in one backward pass."""

    shares: tuple[int, ...]
    atomic: int
    #: Once in the examples of so many steps one is larger, of ``double`` examples in two backward passes, so that a lone
    #: replica sees the noise of gradients in the difference between them; 0: never.
    twice: int = 0
    double: int = 0

    @property
    def batch(self) -> int:
        """Total batch size M."""
        return sum(self.shares)

    @property
    def accumulation(self) -> int:
        """Extra backward passes of the replica that has most."""
        return passes(max(self.shares), self.atomic) - 1

    def until_twice(self, where: int) -> int:
        """Steps before the one in two passes, from example ``where`` of all passes on."""
        return -where % (self.twice * self.batch) // self.batch


class Piece(NamedTuple):
    """One backward pass of one replica: examples ``begin`` to ``end``, counted from the step's first."""

    begin: int
    end: int
    #: Its share of the whole step; 0 for an example that is only borrowed.
    weight: float
    last: bool


class Step(NamedTuple):
    """One optimizer step of ``batch`` examples as one replica sees it."""

    batch: int
    pieces: tuple[Piece, ...]
    #: Whether all backward passes of all replicas have equal weights.
    even: bool
    #: Backward passes of all replicas, and the mean of 1 / examples over them: what the noise scale needs.
    parts: int
    mean_inverse: float


def even_split(batch: int, replicas: int, atomic: int) -> Split:
    """Equal shares, the first ones larger by one example where the batch cannot be divided."""
    return Split(spread(batch, [1.0] * replicas), atomic)


def spread(batch: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Whole shares in proportion to ``speeds``, by largest remainders; their sum is ``batch``."""
    total = sum(speeds)
    wanted = [batch * speed / total for speed in speeds]
    shares = [int(each) for each in wanted]
    by_remainder = sorted(range(len(shares)), key=lambda i: (shares[i] - wanted[i], i))
    for i in by_remainder[: batch - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def passes(share: int, atomic: int) -> int:
    """Backward passes for a share of a step."""
    return max(-(-share // atomic), 1)


def plan_at(split: Split, rank: int, *, number: int, position: int, length: int) -> Step:
    """What ``rank`` does of the step that begins at ``position`` of pass ``number``, of ``length`` examples."""
    left = length - position
    batch = min(split.batch, left)
    # whoever knows the place knows the plan: it is the step whose first ``batch`` examples hold a multiple of so many batches
    if split.twice and -(number * length + position) % (split.twice * split.batch) < batch:
        return plan(split, rank, min(split.double, left), twice=True)
    return plan(split, rank, batch)


@lru_cache(maxsize=4096)
def plan(split: Split, rank: int, batch: int, twice: bool = False) -> Step:
    """What ``rank`` does of a step of ``batch`` examples: all of the split's, or what is left at the end of a pass.

    ``twice``: in two backward passes where one would do.
    """
    # in proportion, so that who was given less has less here too
    shares = split.shares if batch == split.batch else spread(batch, split.shares)
    sizes = [_sizes(share, split.atomic, min(share, 2) if twice else 1) for share in shares]
    real = [size for some in sizes for size in some if size]
    even = min(shares) > 0 and len(set(real)) == 1 and len({len(some) for some in sizes}) == 1
    mean_inverse = sum(1 / size for size in real) / len(real)
    # with fewer examples than replicas one is borrowed, and counts for nothing
    borrowed = (Piece(0, 1, 0.0, True),)
    pieces = _pieces(sum(shares[:rank]), sizes[rank], batch) if shares[rank] else borrowed
    return Step(batch, pieces, even, len(real), mean_inverse)


def _sizes(share: int, atomic: int, least: int) -> tuple[int, ...]:
    """Sizes of the backward passes of one replica: as equal as can be."""
    return spread(share, [1.0] * max(passes(share, atomic), least))


def _pieces(begin: int, sizes: tuple[int, ...], batch: int) -> tuple[Piece, ...]:
    pieces = []
    for number, size in enumerate(sizes):
        pieces.append(Piece(begin, begin + size, size / batch, number == len(sizes) - 1))
        begin += size
    return tuple(pieces)
