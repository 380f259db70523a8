"""What a job gets from a policy that does not choose sizes: exactly what its user asked for."""

from __future__ import annotations

from functools import lru_cache

from coadapt.model import Allocation, JobSpec, Share, workers


def gpus_needed(spec: JobSpec) -> int:
    """GPUs at the requested size, over all roles."""
    if len(spec.roles) == 1:
        return spec.requested * spec.roles[0].demand.gpus
    return spec.requested_gpus + sum(role.min * role.demand.gpus for role in spec.roles[1:])


def as_requested(spec: JobSpec, gpu_type: str = "") -> Allocation:
    """The requested workers, and of every other role as many as it needs at least."""
    if len(spec.roles) == 1:
        return _workers(spec.requested, gpu_type)
    others = tuple(Share(count=role.min, role=role.name) for role in spec.roles[1:] if role.min)
    return Allocation(shares=(*_workers(spec.requested, gpu_type).shares, *others))


@lru_cache(maxsize=4096)
def _workers(count: int, gpu_type: str) -> Allocation:
    # a trace of a million jobs has a dozen sizes
    return workers(count, gpu_type)
