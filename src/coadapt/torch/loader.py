"""The loader that the script loops over: one epoch of work, whatever the batch size, across passes and resizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coadapt.torch.data import Examples, Stream
from coadapt.torch.training.step_plan import Split, even_split, plan_at
from coadapt.torch.training.training_loop import TrainingLoop


class Loader:
    """Made by ``job.loader(...)``. Its length is in steps at M0: what a per-step schedule counts."""

    def __init__(self, loop: TrainingLoop, data: Examples | Stream, initial_batch: int) -> None:
        self.data, self.initial_batch = data, initial_batch
        self._loop, self._training = loop, loop.training
        #: The last epoch for which batches were yielded by this object.
        self._epoch = -1
        #: Batches that are already being loaded, and the split, rank, pass and position they begin at.
        self._open: tuple[tuple[Split, int, int, int], Iterator[Any]] | None = None

    def __len__(self) -> int:
        return -(-self.length // self.initial_batch)

    @property
    def length(self) -> int:
        """Examples in the first pass: an epoch of work."""
        return self.data.length(0)

    def __iter__(self) -> Iterator[Any]:
        loop, training, ledger, length = self._loop, self._training, self._training.ledger, 0
        training.enter()
        try:
            if training.epoch_over() and self._epoch != ledger.epoch:
                yield from self._uncounted_batch()
            while not training.epoch_over():
                self._epoch = ledger.epoch
                split, rank = training.split, training.rank
                length = self.data.length(ledger.passes)
                batches = self._batches(split, rank)
                while True:
                    if count := loop.begin_plain_run(length):
                        yield from training.plain_steps(count, batches)
                        if loop.end_plain_run():
                            break
                    step = plan_at(split, rank, number=ledger.passes, position=ledger.position, length=length)
                    training.begin_step(step)
                    for piece in step.pieces:
                        batch = next(batches)
                        training.begin_pass(step, piece)
                        yield batch
                    if loop.finish_step(step, length):
                        break
                # the next epoch may continue where this one ended, in the middle of a pass
                where = split, rank, ledger.passes, ledger.position
                self._open = (where, batches) if ledger.position else None
        finally:
            training.leave(length)

    def _uncounted_batch(self) -> Iterator[Any]:
        """One batch that is not counted, for a replica that was restarted after the last step of an epoch.

        The code after the script's loop still has to run here and may use variables that the loop sets: the loss, the last
        batch. So the loop is entered once; the optimizer does not step.
        """
        split = even_split(min(self.initial_batch, self.length), 1, self.initial_batch)
        with self._training.dry_run():
            yield next(self.data.batches(split, 0, 0, 0))

    def _batches(self, split: Split, rank: int) -> Iterator[Any]:
        """Batches from the present position on: those already being loaded, if they are the right ones."""
        where = split, rank, self._training.ledger.passes, self._training.ledger.position
        if self._open is not None and self._open[0] == where:
            return self._open[1]
        self._open = None
        return self.data.batches(split, rank, *where[2:])
