"""The candidate configurations: GPU types and counts x batch sizes, packed on nodes, within GPU memory.

A batch that does not fit into the memory of its GPUs is split by gradient accumulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import Fact
from coadapt.model.hardware import find_gpu
from coadapt.planning.problem import Evidence, Option, largest_batch
from coadapt.planning.request import Request
from coadapt.spec.gpus import GpuRange, parse_gpus, parse_range
from coadapt.units import parse_bytes

#: Beyond the GPUs allowed, for "with so many it would do".
_MORE = 4


def gpu_ranges(request: Request, spec: Mapping[str, Any]) -> list[GpuRange]:
    """GPU types and counts of the request, else of the job file."""
    found = request.gpus or spec.get("resources", {}).get("accelerators") or "gpu:1..8"
    return parse_gpus(found, nodes=spec.get("num_nodes", 1))


def named(given: GpuRange, evidence: Evidence) -> GpuRange:
    """Give GPUs without a type the type of the samples, if these have only one."""
    if given.gpu_type == "gpu" and len(evidence.epochs) == 1:
        return given._replace(gpu_type=next(iter(evidence.epochs)))
    return given


def projected_types(ranges: list[GpuRange], evidence: Evidence) -> list[str]:
    """GPU types without a sample, projected from their datasheets; raises an InputError for an unknown type."""
    found = []
    for each in ranges:
        if each.gpu_type in evidence.epochs or (each.gpu_type in ("gpu", "cpu") and not evidence.epochs):
            continue
        find_gpu(each.gpu_type)
        if evidence.epochs:
            found.append(each.gpu_type)
    return found


def options_for(
    request: Request, spec: Mapping[str, Any], ranges: list[GpuRange], evidence: Evidence
) -> tuple[list[Option], list[Option]]:
    """Options within the GPUs offered, and further options that would need more GPUs.

    Args:
        request: What the user asked for.
        spec: The job file.
        ranges: GPU types and counts offered.
        evidence: Past measurements; their batch sizes become options, their memory limits the batch of a GPU.
    """
    batch = spec.get("batch", {})
    low, high, known = _batch_range(request, batch, evidence)
    sizes = batch_sizes(low, high, known)
    limits = {each.gpu_type: _per_gpu(request, batch, each.gpu_type, evidence) for each in ranges}
    full = [name for name, limit in limits.items() if limit == 0]
    if len(full) == len(limits):
        raise InputError(
            f"not even one example fits into the memory of one GPU ({', '.join(full)}); see --gpu-memory"
        )

    size = spec.get("gpus_per_replica", 1)

    def offer(each: GpuRange, least: int, most: int) -> Offer:
        return Offer(
            gpu_type=each.gpu_type,
            replicas=tuple(range(-(-least // size), most // size + 1)),
            gpus_per_node=request.gpus_per_node,
            per_gpu_max=limits[each.gpu_type],
            gpus_per_replica=size,
        )

    options = options_of([offer(each, each.low, each.high) for each in ranges], sizes)
    if not options:
        raise InputError(f"no batch size of {low}..{high} can be shared by {ranges[0].low} GPUs or more")
    return options, options_of([offer(each, each.high + 1, each.high * _MORE) for each in ranges], sizes)


def _batch_range(
    request: Request, batch: Mapping[str, Any], evidence: Evidence
) -> tuple[int, int, list[int]]:
    known = sorted(
        {s.batch for table in evidence.epochs.values() for s in table.samples}
        | {s.batch for s in (evidence.metrics.samples if evidence.metrics else ())}
    )
    if request.batch:
        return (*parse_range("batch sizes", request.batch), known)
    if "initial" in batch:
        return batch["initial"], batch.get("max", batch["initial"]), known
    if known:
        return known[0], known[-1], known
    raise InputError("which batch sizes? give --batch 32..4096, or past runs (--samples)")


def _per_gpu(request: Request, batch: Mapping[str, Any], gpu_type: str, evidence: Evidence) -> int | None:
    """The largest batch that one GPU of a type holds: as told, and as its memory allows."""
    limit = request.per_gpu_max
    if limit is None and "per_gpu" in batch:
        _, limit = parse_range("batch.per_gpu", batch["per_gpu"])
    memory = _memory(request, gpu_type)
    fits = None if memory is None else largest_batch(evidence.memory, memory)
    found = [each for each in (limit, fits) if each is not None]
    return min(found) if found else None


def _memory(request: Request, gpu_type: str) -> float | None:
    if request.memory is not None:
        return float(parse_bytes(request.memory))
    try:
        return find_gpu(gpu_type).memory_bytes
    except UnknownNameError:
        return None


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
    """Batch sizes from ``low`` to ``high`` in steps of about a quarter of a doubling, and the measured ones."""
    if not 1 <= low <= high:
        raise InputError(f"batch sizes {low}..{high}: the first must be at least 1 and not above the second")
    steps = min(math.ceil(4 * math.log2(high / low)), MOST_BATCHES - 1) if high > low else 0
    sizes = {round(low * (high / low) ** (i / steps)) for i in range(steps + 1)} if steps else {low}
    return sorted(sizes | {size for size in known if low <= size <= high})
