"""The options to choose from: GPU types and counts x batch sizes, packed on nodes, with accumulation where a batch does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from coadapt.configure.problem import Option
from coadapt.errors import InputError
from coadapt.model import Fact

#: Batch sizes between the smallest and the largest, where only these are given.
MOST_BATCHES = 50


class Offer(Fact, frozen=True, kw_only=True):
    """GPUs that may be used: ``replicas`` counts of one type."""

    gpu_type: str
    replicas: tuple[int, ...]
    gpus_per_node: int
    #: Largest batch that one GPU holds; None: any; 0: not even one example.
    per_gpu_max: int | None = None
    gpus_per_replica: int = 1


def options_of(offers: Iterable[Offer], batches: Sequence[int]) -> list[Option]:
    """Every combination that can run: at least one example per replica."""
    found = []
    for offer in offers:
        for replicas in offer.replicas:
            nodes = -(-replicas * offer.gpus_per_replica // offer.gpus_per_node)
            for batch in batches:
                if batch < replicas:
                    continue
                local = batch / replicas
                most = local if offer.per_gpu_max is None else offer.per_gpu_max
                if most <= 0:
                    continue
                found.append(
                    Option(
                        gpu_type=offer.gpu_type,
                        replicas=replicas,
                        nodes=nodes,
                        batch=batch,
                        accumulation=max(math.ceil(local / most - 1e-9) - 1, 0),
                        gpus_per_replica=offer.gpus_per_replica,
                    )
                )
    return found


def batch_sizes(low: int, high: int, known: Iterable[int] = ()) -> list[int]:
    """Sizes in steps of about a quarter of a doubling, and those known by measurement."""
    if not 1 <= low <= high:
        raise InputError(f"batch sizes {low}..{high}: the first must be at least 1 and not above the second")
    steps = min(math.ceil(4 * math.log2(high / low)), MOST_BATCHES - 1) if high > low else 0
    sizes = {round(low * (high / low) ** (i / steps)) for i in range(steps + 1)} if steps else {low}
    return sorted(sizes | {size for size in known if low <= size <= high})
