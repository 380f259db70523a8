"""The best rate of progress a job can ever have on so many replicas: over placements, node counts and batch sizes.

For bounds, so nothing that can happen may be left out. Batch sizes are all that an agent may choose for so many
replicas (``configure.best_batch``: its candidates, of which the first is the one it starts with), and given ones. Placements are all of up to four
nodes; on more nodes one for every number of nodes and of replicas on the fullest node, for neither measured tables
nor the shipped formulas tell others apart there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from coadapt.configure.best_batch import CANDIDATES, split_batch
from coadapt.model import Batch
from coadapt.predict.efficiency import gain
from coadapt.simulate.truth import Truth

#: Up to so many nodes all placements are tried.
_ALL_PLACEMENTS = 4


def best_rates(
    truth: Truth,
    limits: Batch,
    gpu_type: str,
    replicas: int,
    room: Sequence[int],
    given: Iterable[int],
) -> npt.NDArray[np.float64]:
    """Progress per second in every epoch, at most. ``room``: replicas that fit each node; ``given``: batch sizes."""
    splits = sorted({split_batch(total, replicas, limits) for total in _totals(limits, replicas, given)})
    update_s = dict.fromkeys(splits, math.inf)
    for shape in shapes(replicas, room):
        for atomic, accumulation in splits:
            step_s, sync_s = truth.step(shape, atomic, gpu_type)
            spent_s = step_s + accumulation * (step_s - sync_s)
            if spent_s < update_s[atomic, accumulation]:
                update_s[atomic, accumulation] = spent_s
    quickest: dict[int, float] = {}
    for (atomic, accumulation), spent_s in update_s.items():
        total = replicas * atomic * (accumulation + 1)
        quickest[total] = min(spent_s, quickest.get(total, math.inf))
    return np.array(
        [
            max(
                gain(*truth.gradients(total, epoch), total / limits.initial) / spent_s
                for total, spent_s in quickest.items()
            )
            for epoch in range(truth.epochs)
        ]
    )


def _totals(limits: Batch, replicas: int, given: Iterable[int]) -> Iterator[int]:
    """Total batch sizes: the given ones, and where they are chosen all candidates, rounded either way."""
    yield from given
    if limits.mode == "fixed":
        return
    least = max(limits.initial, limits.per_gpu_min * replicas)
    for total in np.geomspace(least, max(least, limits.max), CANDIDATES).tolist():
        yield max(math.floor(total), least)
        yield max(math.ceil(total), least)


def shapes(replicas: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Replicas per node, of every kind of placement there is room for."""
    largest = sorted(room, reverse=True)
    for nodes in range(1, min(replicas, len(largest)) + 1):
        if sum(largest[:nodes]) < replicas:
            continue
        if nodes <= _ALL_PLACEMENTS:
            yield from _all_shapes(replicas, nodes, largest[0])
            continue
        for fullest in range(-(-replicas // nodes), min(largest[0], replicas - nodes + 1) + 1):
            share, more = divmod(replicas - fullest, nodes - 1)
            yield (fullest, *(share + 1,) * more, *(share,) * (nodes - 1 - more))


def _all_shapes(replicas: int, nodes: int, most: int) -> Iterator[tuple[int, ...]]:
    """One of those that are rotations of each other: the fullest node, or one of them, first."""
    for rest in product(range(1, most + 1), repeat=nodes - 1):
        first = replicas - sum(rest)
        if max(rest, default=1) <= first <= most:
            yield (first, *rest)
