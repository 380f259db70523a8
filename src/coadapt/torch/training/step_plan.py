"""Which examples make up one optimizer step and which replica computes them, and how far a job has come. Pure functions and data.

The examples of a pass have one order; a step takes the next ones, replica by replica, backward pass by backward pass. So the
examples of a step do not depend on the number of replicas. Gradients are weighted by examples: the sum over all backward
passes of all replicas is exactly the gradient of the whole step, whatever the shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from coadapt.prediction.gradient_noise import efficiency

#: The smallest ``Split.twice``: larger steps are never adjacent, and most steps are of the usual size, which is the one that is timed.
OFTEN = 3


class Split(NamedTuple):
    """How a batch is divided: examples per replica (their sum is the batch size), and the most in one backward pass."""

    shares: tuple[int, ...]
    atomic: int
    #: Every n-th step is larger (0: none): ``double`` examples in two backward passes, whose difference shows the gradient noise on a
    #: single replica; 0: none is.
    twice: int = 0
    double: int = 0

    @property
    def batch(self) -> int:
        """Total batch size M."""
        return sum(self.shares)

    @property
    def accumulation(self) -> int:
        """Backward passes beyond the first, on the replica with the largest share."""
        return passes(max(self.shares), self.atomic) - 1

    def until_twice(self, where: int) -> int:
        """Steps before the next larger one, from example number ``where``, counted over all passes."""
        return -where % (self.twice * self.batch) // self.batch


class Piece(NamedTuple):
    """One backward pass of one replica: examples ``begin`` to ``end``, counted from the first of the step."""

    begin: int
    end: int
    #: Its share of the step's examples; 0 for a borrowed example: see ``plan``.
    weight: float
    last: bool


class Step(NamedTuple):
    """One optimizer step of ``batch`` examples, and the backward passes of one replica in it."""

    batch: int
    pieces: tuple[Piece, ...]
    #: Whether all backward passes of all replicas have equal weights.
    even: bool
    #: Number of backward passes of all replicas, and the mean of 1 / examples over them, for the noise scale.
    parts: int
    mean_inverse: float


def even_split(batch: int, replicas: int, atomic: int) -> Split:
    """Equal shares; the first ones are larger by one example where the batch cannot be divided evenly."""
    return Split(spread(batch, [1.0] * replicas), atomic)


def spread(batch: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Divide ``batch`` into whole shares in proportion to ``speeds``, by largest remainders."""
    total = sum(speeds)
    wanted = [batch * speed / total for speed in speeds]
    shares = [int(each) for each in wanted]
    by_remainder = sorted(range(len(shares)), key=lambda i: (shares[i] - wanted[i], i))
    for i in by_remainder[: batch - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def passes(share: int, atomic: int) -> int:
    """The number of backward passes for a share of a step."""
    return max(-(-share // atomic), 1)


def plan_at(split: Split, rank: int, *, number: int, position: int, length: int) -> Step:
    """The step that begins at a position in the data, as ``rank`` sees it.

    Args:
        split: How steps are divided.
        rank: The replica.
        number: The pass through the data, counted from 0.
        position: The first example of the step in that pass.
        length: Examples in that pass.
    """
    left = length - position
    batch = min(split.batch, left)
    # the larger step is the one whose first ``batch`` examples contain a multiple of ``twice`` batches: it follows from the position alone
    if split.twice and -(number * length + position) % (split.twice * split.batch) < batch:
        return plan(split, rank, min(split.double, left), twice=True)
    return plan(split, rank, batch)


@lru_cache(maxsize=4096)
def plan(split: Split, rank: int, batch: int, twice: bool = False) -> Step:
    """A step of ``batch`` examples as ``rank`` sees it.

    Args:
        split: How steps are divided.
        rank: The replica.
        batch: Examples in the step: the split's batch size, twice that, or what remains of the pass.
        twice: Use two backward passes even where one would be enough.
    """
    # a shorter step is divided in the same proportions
    shares = split.shares if batch == split.batch else spread(batch, split.shares)
    sizes = [_sizes(share, split.atomic, min(share, 2) if twice else 1) for share in shares]
    real = [size for some in sizes for size in some if size]
    even = min(shares) > 0 and len(set(real)) == 1 and len({len(some) for some in sizes}) == 1
    mean_inverse = sum(1 / size for size in real) / len(real)
    # a replica without a share computes an example of the first one at weight 0: it must take part in collectives
    borrowed = (Piece(0, 1, 0.0, True),)
    pieces = _pieces(sum(shares[:rank]), sizes[rank], batch) if shares[rank] else borrowed
    return Step(batch, pieces, even, len(real), mean_inverse)


def _sizes(share: int, atomic: int, least: int) -> tuple[int, ...]:
    """Sizes of the backward passes of one replica, as equal as possible; at least ``least`` of them."""
    return spread(share, [1.0] * max(passes(share, atomic), least))


def _pieces(begin: int, sizes: tuple[int, ...], batch: int) -> tuple[Piece, ...]:
    pieces = []
    for number, size in enumerate(sizes):
        pieces.append(Piece(begin, begin + size, size / batch, number == len(sizes) - 1))
        begin += size
    return tuple(pieces)


@dataclass(slots=True)
class Ledger:
    """How far training has come: the same on every replica, saved in every checkpoint. Work is in examples at M0."""

    #: Committed optimizer steps.
    step: int = 0
    #: Completed passes, and examples used of the current one.
    passes: int = 0
    position: int = 0
    work: float = 0.0
    #: Completed epochs of the script's loop.
    epoch: int = 0

    def commit(self, batch: int, length: int | None) -> bool:
        """Count a step of ``batch`` examples; True if it was the last of a pass of ``length`` examples."""
        self.step += 1
        self.position += batch
        if length is None or self.position < length:
            return False
        self.end_pass()
        return True

    def end_pass(self) -> None:
        """Go to the first example of the next pass."""
        self.passes += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        for name, value in state.items():
            setattr(self, name, value)


def work_of(batch: int, initial_batch: int, grad: tuple[float, float]) -> float:
    """Useful examples in a step of ``batch``: all of them up to M0, so that a pass at M0 is exactly an epoch of work."""
    if batch <= initial_batch:
        return float(batch)
    return batch * efficiency(*grad, batch / initial_batch)
