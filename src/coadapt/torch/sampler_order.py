"""The order of a script's own sampler: repeatable, divided among replicas by us, and of any length."""

from __future__ import annotations

import copy
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from coadapt.errors import InputError
from coadapt.torch.elastic import random_state
from coadapt.torch.elastic.random_state import pass_seed

log = logging.getLogger("coadapt.torch")
#: Longest order that is read at once.
_LISTED = 2**20
#: Examples that are read from a longer one at a time.
_CHUNK = 4096


def undivided(sampler: Any) -> Any:
    """The sampler for all examples: a DistributedSampler becomes one of a single replica. An error for others that know a rank."""
    if isinstance(sampler, DistributedSampler):
        if sampler.num_replicas == 1:
            return sampler
        log.info("DistributedSampler: examples are divided by coadapt; its order is used")
        whole = copy.copy(sampler)
        length = len(sampler.dataset)
        whole.num_replicas, whole.rank, whole.num_samples, whole.total_size = 1, 0, length, length
        return whole
    for name in ("num_replicas", "world_size", "num_shards"):
        count = getattr(sampler, name, 1)
        if isinstance(count, int) and count > 1:
            raise InputError(
                f"sampler={type(sampler).__name__} yields the examples of one of {count} replicas: make it for all examples "
                f"({name}=1); coadapt divides them"
            )
    return sampler


def sampler_order(
    sampler: Sampler[Any], number: int, *, seed: int, length: int | None = None
) -> Sequence[int]:
    """The order of the script's own sampler in pass ``number``, with all random generators that it may use seeded.

    ``length`` is needed where the sampler has no end.
    """
    seed = pass_seed(seed, number)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(number)
    if length is None:
        try:
            length = len(sampler)
        except TypeError:
            length = None
    if length is not None and length > _LISTED:
        return LongOrder(sampler, length, seed)
    if getattr(sampler, "generator", self_made := object()) is not self_made:
        sampler.generator = torch.Generator().manual_seed(seed)
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            found = list(itertools.islice(sampler, length if length is not None else _LISTED + 1))
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
    if not found:
        raise InputError(f"the sampler yielded no example in pass {number}")
    if length is None and len(found) > _LISTED:
        raise InputError(
            f"the sampler has no len() and yields more than {_LISTED} examples: set length= to those of one pass"
        )
    if isinstance(found[0], (list, tuple)):
        raise InputError(
            "the sampler yields batches; pass one that yields single examples: job.loader() makes the batches"
        )
    return found


class LongOrder(Sequence[int]):
    """The order of a sampler that is too long for memory: read as far as it is used, with random generators of its own."""

    def __init__(self, sampler: Sampler[Any], length: int, seed: int) -> None:
        self._sampler, self._length, self._seed = sampler, length, seed
        self._restart()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            return self[key : key + 1][0]
        begin, end, _ = key.indices(self._length)
        if begin < self._begin:  # after a resize: batches that were loaded ahead are loaded again
            self._restart()
        while self._begin + len(self._read) < end:
            with self._generators():
                more = list(itertools.islice(self._rest, _CHUNK))
            if not more:
                raise InputError(
                    f"the sampler ended after {self._begin + len(self._read)} of {self._length} examples"
                )
            self._read += more
            surplus = min(len(self._read) - 4 * _CHUNK, begin - self._begin)
            if surplus > 0:
                del self._read[:surplus]
                self._begin += surplus
        return self._read[begin - self._begin : end - self._begin]

    def _restart(self) -> None:
        self._begin, self._read = 0, list[int]()
        outer = random_state.generators()
        own = getattr(self._sampler, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(self._seed)
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)
        self._state = random_state.generators()
        random_state.restore(outer)
        self._rest: Iterator[int] = iter(self._sampler)

    @contextmanager
    def _generators(self) -> Iterator[None]:
        outer = random_state.generators()
        random_state.restore(self._state)
        try:
            yield
        finally:
            self._state = random_state.generators()
            random_state.restore(outer)
