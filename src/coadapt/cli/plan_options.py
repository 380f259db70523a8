"""The options a user offers: GPU types and counts, batch sizes, what one GPU holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coadapt.cli.plan_request import Request
from coadapt.cli.plan_words import GpuRange, parse_gpus, parse_range
from coadapt.configure.memory import largest_batch
from coadapt.configure.offers import Offer, batch_sizes, options_of
from coadapt.configure.problem import Evidence, Option
from coadapt.errors import InputError, UnknownNameError
from coadapt.predict.hardware import find_gpu
from coadapt.units import parse_bytes

#: Beyond the GPUs allowed, for "with so many it would do".
_MORE = 4


def gpu_ranges(request: Request, spec: Mapping[str, Any]) -> list[GpuRange]:
    """GPUs as the command or the specification names them."""
    resources = spec.get("resources")
    found = resources.get("accelerators") if isinstance(resources, Mapping) else None
    return parse_gpus(request.gpus or (None if found is None else str(found)) or "gpu:1..8")


def named(given: GpuRange, evidence: Evidence) -> GpuRange:
    """GPUs without a type are those that were sampled, if these are of one type."""
    if given.gpu_type == "gpu" and len(evidence.epochs) == 1:
        return given._replace(gpu_type=next(iter(evidence.epochs)))
    return given


def projected_types(ranges: list[GpuRange], evidence: Evidence) -> list[str]:
    """Types without a sample, known by their datasheets; unknown ones are refused."""
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
    """What may be used; and what might be, if there were more GPUs."""
    batch = spec.get("batch") if isinstance(spec.get("batch"), Mapping) else {}
    assert isinstance(batch, Mapping)
    low, high, known = _batch_range(request, batch, evidence)
    sizes = batch_sizes(low, high, known)
    limits = {each.gpu_type: _per_gpu(request, batch, each.gpu_type, evidence) for each in ranges}
    full = [name for name, limit in limits.items() if limit == 0]
    if len(full) == len(limits):
        raise InputError(
            f"not even one example fits into the memory of one GPU ({', '.join(full)}); see --memory"
        )

    def offers(least: int, times: int) -> list[Offer]:
        return [
            Offer(
                gpu_type=each.gpu_type,
                replicas=tuple(range(each.low if least == 0 else each.high + 1, each.high * times + 1)),
                gpus_per_node=request.gpus_per_node,
                per_gpu_max=limits[each.gpu_type],
            )
            for each in ranges
        ]

    options = options_of(offers(0, 1), sizes)
    if not options:
        raise InputError(f"no batch size of {low}..{high} can be shared by {ranges[0].low} GPUs or more")
    return options, options_of(offers(1, _MORE), sizes)


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
        return int(batch["initial"]), int(batch.get("max", batch["initial"])), known
    if known:
        return known[0], known[-1], known
    raise InputError("which batch sizes? give --batch 32..4096, or past runs (--samples)")


def _per_gpu(request: Request, batch: Mapping[str, Any], gpu_type: str, evidence: Evidence) -> int | None:
    """The largest batch that one GPU of a type holds: as told, and as its memory allows."""
    told = request.per_gpu_max or batch.get("per_gpu")
    limit = None if told is None else int(str(told).split("..")[-1])
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
