"""The loader the script loops over: one epoch of work, whatever the batch size, across passes and resizes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from coadapt.torch.data import Examples, Stream
from coadapt.torch.ledger import Ledger
from coadapt.torch.plain import Plain
from coadapt.torch.rows import Rows
from coadapt.torch.steps import Piece, Split, Step, even_split, plan_at


class Trainer(Protocol):
    """Who is told about every step: the job."""

    ledger: Ledger
    plain: Plain
    rows: Rows

    @property
    def split(self) -> Split:
        """How a batch is shared at present."""

    @property
    def rank(self) -> int:
        """This replica."""

    def enter(self) -> None:
        """The script's loop begins."""

    def leave(self) -> None:
        """It has ended, or was left."""

    def over(self) -> bool:
        """Whether the epoch is over."""

    def dry(self) -> AbstractContextManager[None]:
        """While it lasts nothing that the script does counts."""

    def begin(self, step: Step) -> None:
        """A step begins."""

    def open(self, step: Step, piece: Piece) -> None:
        """Its next backward pass is about to begin."""

    def complete(self, step: Step) -> bool:
        """A step is done; True if what follows must be planned anew."""

    def not_updated(self) -> None:
        """The script did not step the optimizer."""


class Loader:
    """Made by ``job.loader(...)``. Its length is in steps at M0: what a per-step schedule counts."""

    def __init__(self, job: Trainer, data: Examples | Stream, initial_batch: int) -> None:
        self.data, self.initial_batch = data, initial_batch
        self._job = job
        #: The epoch that batches were last made for here.
        self._epoch = -1
        self._open: tuple[tuple[Split, int, int, int], Iterator[Any]] | None = None

    def __len__(self) -> int:
        return -(-self.length // self.initial_batch)

    @property
    def length(self) -> int:
        """Examples in the first pass: an epoch of work."""
        return self.data.length(0)

    def __iter__(self) -> Iterator[Any]:
        job, ledger = self._job, self._job.ledger
        job.enter()
        try:
            if job.over() and self._epoch != ledger.epoch:
                yield from self._once_more()
            while not job.over():
                self._epoch = ledger.epoch
                split, rank = job.split, job.rank
                length = self.data.length(ledger.passes)
                batches = self._batches(split, rank)
                while True:
                    if ahead := job.rows.ahead(length):
                        yield from self._plainly(ahead, batches, split.batch)
                        if job.rows.over():
                            break
                    step = plan_at(split, rank, number=ledger.passes, position=ledger.position, length=length)
                    job.begin(step)
                    for piece in step.pieces:
                        batch = next(batches)
                        job.open(step, piece)
                        yield batch
                    if job.complete(step):
                        break
                # the next epoch may go on where this one ended, in the middle of a pass
                where = split, rank, ledger.passes, ledger.position
                self._open = (where, batches) if ledger.position else None
        finally:
            job.leave()

    def _plainly(self, ahead: int, batches: Iterator[Any], size: int) -> Iterator[Any]:
        """Plain steps, one after the other: see ``plain``. As little as can be happens between two of them."""
        plain, ledger, clock = self._job.plain, self._job.ledger, time.perf_counter
        took, mark = plain.took.append, plain.mark
        while ahead:
            ahead -= 1
            plain.due = True
            yield next(batches)
            if plain.due:
                self._job.not_updated()
            ledger.step += 1
            ledger.position += size
            now = clock()
            took(now - mark)
            plain.mark = mark = now
            if plain.one_s is None:
                plain.one_s = plain.spent() - plain.begun
            if now >= plain.until:
                break

    def _once_more(self) -> Iterator[Any]:
        """One batch that counts for nothing, for a replica that came after the last step of an epoch.

        What the script does after its loop is still to be done here, and may use what the loop has set: the loss, the
        last batch. So the loop is entered once; the optimizer does not step.
        """
        split = even_split(min(self.initial_batch, self.length), 1, self.initial_batch)
        with self._job.dry():
            yield next(self.data.batches(split, 0, 0, 0))

    def _batches(self, split: Split, rank: int) -> Iterator[Any]:
        """Batches from where the job stands: those already being loaded, if they are the right ones."""
        where = split, rank, self._job.ledger.passes, self._job.ledger.position
        if self._open is not None and self._open[0] == where:
            return self._open[1]
        self._open = None
        return self.data.batches(split, rank, *where[2:])
