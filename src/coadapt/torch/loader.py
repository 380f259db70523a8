"""The loader that the script loops over: one epoch of work, whatever the batch size, across passes and resizes.

``Examples`` and ``Stream`` are datasets as batches of one replica from any position of a pass on. The order of examples follows
from (seed, pass): it is the same on every replica and after every restart.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from coadapt.errors import InputError
from coadapt.torch import script_errors
from coadapt.torch.elastic import random_state
from coadapt.torch.elastic.random_state import pass_seed
from coadapt.torch.sampler_order import sampler_order, undivided
from coadapt.torch.training import script_frames
from coadapt.torch.training.replica_guard import described
from coadapt.torch.training.step_plan import Split, Step, even_split, plan, plan_at
from coadapt.torch.training.training_loop import TrainingLoop


def order_of(length: int, number: int, *, seed: int, shuffle: bool) -> Sequence[int] | torch.Tensor:
    """Indices of ``length`` examples in the order of pass ``number``: that of ``seed`` if ``shuffle``, else their own."""
    if not shuffle:
        return range(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed(pass_seed(seed, number)))


#: Examples whose indices are read from the order at once, and those by which replicas compare their orders.
_SLICE, _COMPARED = 4096, 64


class Examples:
    """A dataset with a length and an index, read by PyTorch's DataLoader with ``options``.

    The order is that of ``sampler``, else of ``seed`` if ``shuffle``, else the dataset's own. A pass is a multiple of ``multiple`` examples:
    what remains is left out, as DataLoader's drop_last does.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        seed: int,
        shuffle: bool,
        sampler: Sampler[Any] | None,
        options: dict[str, Any],
        multiple: int = 1,
        length: int | None = None,
    ) -> None:
        self.dataset, self.seed, self.shuffle, self.sampler = dataset, seed, shuffle, undivided(sampler)
        self.multiple, self._given_length = multiple, length
        self.options = options
        self._ordered: tuple[int, Sequence[int] | torch.Tensor] | None = None

    def length(self, number: int) -> int:
        """Examples in pass ``number``."""
        length = len(self.order(number))
        return length - length % self.multiple or length

    def facts(self, number: int, position: int) -> str:
        """The order of pass ``number`` from ``position`` on, to be compared among replicas."""
        some = self.order(number)[position : position + _COMPARED]
        return f"{self.length(number)} examples, next {zlib.crc32(str(list(map(int, some))).encode()):x}"

    def sample(self) -> str:
        """Three examples, to be compared among replicas; empty if reading one twice gives two results."""
        last = len(self.dataset) - 1
        found = [self._read([0, last // 2, last]) for _ in range(2)]
        return f", content {zlib.crc32(found[0].encode()):x}" if found[0] == found[1] else ""

    def _read(self, indices: list[int]) -> str:
        """Examples as text; random ones are drawn alike each time and on every replica."""
        outer = random_state.generators()
        try:
            random_state.reseed(self.seed, 0, 0)
            return described([self.dataset[index] for index in indices])
        finally:
            random_state.restore(outer)

    def order(self, number: int) -> Sequence[int] | torch.Tensor:
        """The order of pass ``number``; the last one is cached."""
        if self._ordered is None or self._ordered[0] != number:
            if self.sampler is not None:
                order: Sequence[int] | torch.Tensor = sampler_order(
                    self.sampler, number, seed=self.seed, length=self._given_length
                )
            else:
                order = order_of(len(self.dataset), number, seed=self.seed, shuffle=self.shuffle)
            self._ordered = number, order
        return self._ordered[1]

    def batches(self, split: Split, rank: int, number: int, position: int) -> Iterator[Any]:
        """Batches for the backward passes of one replica to the end of a pass.

        Args:
            split: How steps are divided.
            rank: The replica.
            number: The pass through the data, counted from 0.
            position: The first example in that pass.
        """
        order = self.order(number)
        if self.multiple > 1:
            order = order[: self.length(number)]
        indices = _Indices(order, split, rank, number, position)
        generator = torch.Generator().manual_seed(pass_seed(self.seed, number))
        return iter(DataLoader(self.dataset, batch_sampler=indices, generator=generator, **self.options))


class _Indices:
    """A batch sampler: indices of one replica's backward passes in a pass of ``order``, from ``position`` on."""

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
            # the last step of the slice may be a larger one
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
    """An IterableDataset: every replica reads the whole stream and uses its part; a restart skips what was used.

    It must yield the same examples in the same order on every replica and in every pass that is read again. If it has ``state_dict``
    and ``load_state_dict``, its state is part of the checkpoint, and a restart reads nothing again.
    """

    def __init__(
        self, dataset: IterableDataset[Any], *, length: int | None, collate: Callable[[Any], Any] | None
    ) -> None:
        if length is None:
            raise InputError("an IterableDataset has no length; set length= to the number of its examples")
        self.dataset, self._length, self._collate = dataset, length, collate or default_collate
        self.sampler = None
        self.stateful = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        #: Pass and position that the dataset's state belongs to, and that state where it was restored.
        self._place = (0, 0)
        self._restored: Any = None
        self._first = ""

    def length(self, number: int) -> int:
        """The ``length`` given to ``job.loader()``, in every pass."""
        return self._length

    def facts(self, number: int, position: int) -> str:
        """The examples that were read last from the beginning of a loop, to be compared among replicas."""
        return self._first or "not read yet"

    def sample(self) -> str:
        """Nothing: ``facts`` has the examples that were read."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """The dataset's state between two steps."""
        return {"place": self._place, "state": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it; used by the next ``batches`` from the same place."""
        self._place, self._restored = tuple(state["place"]), state["state"]

    def batches(self, split: Split, rank: int, number: int, position: int) -> Iterator[Any]:
        """Batches of replica ``rank`` under ``split`` in pass ``number`` from ``position`` on; see ``Examples``."""
        stream = self._opened(number, position)
        while position < self._length:
            step = plan_at(split, rank, number=number, position=position, length=self._length)
            examples = list(itertools.islice(stream, step.batch))
            if len(examples) < step.batch:
                raise InputError(
                    f"the IterableDataset ended after {position + len(examples)} examples, not {self._length}; "
                    "correct length= (or let every replica read all of it: coadapt divides the examples)"
                )
            if not self._first:
                self._first = f"{zlib.crc32(described(examples).encode()):x}"
            position += step.batch
            self._place = (number, position)
            for piece in step.pieces:
                yield self._collate(examples[piece.begin : piece.end])

    def _opened(self, number: int, position: int) -> Iterator[Any]:
        self._first = ""
        if self.stateful and self._place == (number, position) and position:
            state = self.dataset.state_dict() if self._restored is None else self._restored
            self._restored = None
            self.dataset.load_state_dict(state)
            return iter(self.dataset)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        return itertools.islice(iter(self.dataset), position, None)


class _OwnOrder:
    """Stands for the sampler of a loader that has none: the order is the job's."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler's; the job knows the pass."""


class Loader:
    """Made by ``job.loader(...)``. Its length is in steps at M0: what a per-step schedule counts."""

    def __init__(self, loop: TrainingLoop, data: Examples | Stream, initial_batch: int) -> None:
        self.data, self.initial_batch = data, initial_batch
        # as a DataLoader's
        self.dataset, self.batch_size, self.drop_last, self.batch_sampler = (
            data.dataset,
            initial_batch,
            False,
            None,
        )
        options = getattr(data, "options", {})
        self.num_workers, self.pin_memory = options.get("num_workers", 0), options.get("pin_memory", False)
        self.collate_fn = options.get("collate_fn") or default_collate
        self.sampler = data.sampler if data.sampler is not None else _OwnOrder(self.length)
        self._loop, self._training = loop, loop.training
        #: Keeps ``job.state`` as it is while a batch is not counted.
        self.state_unchanged: Callable[[], AbstractContextManager[None]] = nullcontext
        #: Whether a replica that is restarted at the end of an epoch runs the loop once: see ``_uncounted_batch``.
        self.repeats_ends = True
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
            if training.epoch_over() and self._epoch != ledger.epoch and self.repeats_ends:
                yield from self._uncounted_batch()
            while not training.epoch_over():
                self._epoch = ledger.epoch
                split, rank = training.split, training.rank
                length = self.data.length(ledger.passes)
                batches = self._batches(split, rank)
                while True:
                    if count := loop.begin_plain_run(length):
                        yield from training.plain_steps(count, batches)
                        if training.leaving:
                            return
                        if loop.end_plain_run():
                            break
                    step = plan_at(split, rank, number=ledger.passes, position=ledger.position, length=length)
                    training.begin_step(step)
                    for piece in step.pieces:
                        batch = next(batches)
                        training.begin_pass(step, piece)
                        yield batch
                    if not training.complete_step():
                        return
                    if loop.finish_step(step, length):
                        break
                # the next epoch may continue where this one ended, in the middle of a pass
                where = split, rank, ledger.passes, ledger.position
                self._open = (where, batches) if ledger.position else None
            loop.rest()
        except GeneratorExit:
            if script_frames.left_by_script():
                # Python ignores errors here, exits included
                with script_errors.fatal():
                    self._leave_together(length)
            raise
        finally:
            if training.leave(length):
                loop.write_journal()

    def _leave_together(self, length: int) -> None:
        """The script has left the loop on this replica: the others leave it too, before the same step."""
        training, loop = self._training, self._loop
        if training.gradients is None or not training.gradients.shared or not length:
            return
        agreement = training.agreement
        pending = training.pending_step
        if pending is None:
            if training.plain.running:
                training.commit_plain_step(length)
                loop.between_steps()
            elif training.present_step is not None:
                loop.finish_step(training.present_step, length)
            if training.epoch_over():
                return
        agreement.leave(loop.group, training.ledger.step)
        if pending is None:
            number, position = training.ledger.passes, training.ledger.position
            length = self.data.length(number)
            pending = plan_at(training.split, training.rank, number=number, position=position, length=length)
            training.begin_step(pending)
            training.begin_pass(pending, pending.pieces[-1])
        elif not training.updating:  # passes of the step are to come
            training.begin_pass(pending, pending.pieces[-1])
        agreement.void_step()
        training.forget_step()

    def _uncounted_batch(self) -> Iterator[Any]:
        """One batch that is not counted, for a replica that was restarted after the last step of an epoch.

        The code after the script's loop still has to run here and may use variables that the loop sets: the loss, the last
        batch. So the loop is entered once; the optimizer does not step.
        """
        split = even_split(min(self.initial_batch, self.length), 1, self.initial_batch)
        with self._training.dry_run(), self.state_unchanged():
            yield next(self.data.batches(split, 0, 0, 0))

    def _batches(self, split: Split, rank: int) -> Iterator[Any]:
        """Batches from the present position on: those already being loaded, if they are the right ones."""
        where = split, rank, self._training.ledger.passes, self._training.ledger.position
        if self._open is not None and self._open[0] == where:
            return self._open[1]
        self._open = None
        return self.data.batches(split, rank, *where[2:])
