"""What Sia offers a job: configurations of every GPU type, and how much faster than its slowest each is.

A configuration is 1, 2, 4, ... GPUs of one node, up to all of it, or some whole nodes, of one GPU type. An elastic job may
get twice the most replicas it was measured with; before its first measurement the smallest configuration
of every type, all alike. A rigid job has one configuration per type, its requested size on as few nodes as possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.configure import Curve
from coadapt.errors import InputError
from coadapt.model.snapshot import JobView, Snapshot


class Config(NamedTuple):
    """So many GPUs of a type on so many nodes."""

    gpu_type: str
    nodes: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.gpus} {self.gpu_type} GPU{'s' if self.gpus > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """A job's configurations, their goodput over the smallest of them, and which of them it has."""

    job: JobView
    configs: tuple[Config, ...]
    gains: tuple[float, ...]
    current: Config | None

    def gain(self, config: Config) -> float:
        """Goodput over that of the slowest configuration."""
        return self.gains[self.configs.index(config)]

    @property
    def best(self) -> Config | None:
        """The fastest configuration."""
        return max(self.configs, key=self.gain, default=None)


def configurations(snapshot: Snapshot) -> dict[str, list[Config]]:
    """By GPU type, from the smallest on; of nodes that differ the largest count first."""
    sizes: dict[str, list[int]] = {}
    for view in snapshot.nodes.values():
        if view.node.gpus:
            sizes.setdefault(view.node.gpu_type, []).append(view.node.gpus)
    found: dict[str, list[Config]] = {}
    for gpu_type, nodes in sizes.items():
        nodes.sort(reverse=True)
        parts = [2**i for i in range(nodes[0].bit_length()) if 2**i < nodes[0]]
        found[gpu_type] = [Config(gpu_type, 1, gpus) for gpus in parts]
        found[gpu_type] += [Config(gpu_type, n, sum(nodes[:n])) for n in range(1, len(nodes) + 1)]
    return found


def row_of(job: JobView, curve: Curve, configs: Mapping[str, Sequence[Config]]) -> Row:
    """The job's row of the matrix. A rigid job's slowest type counts as many as it has GPUs."""
    spec, unit = job.spec, job.spec.gpus_per_replica
    if len(spec.roles) > 1:
        raise InputError(
            f"policy 'sia' places workers only; job {job.id!r} also has the role {spec.roles[1].name!r}"
        )
    if not unit:
        raise InputError(f"policy 'sia' divides GPUs; a replica of job {job.id!r} needs none")
    allowed = {name: of for name, of in configs.items() if not spec.gpu_types or name in spec.gpu_types}
    rigid = is_rigid(job)
    if rigid:
        offered = [_requested(name, of, spec.requested * unit) for name, of in allowed.items()]
    else:
        offered = [c for of in allowed.values() for c in _sizes(job, curve, of)]
    kept = {c: g for c, g in zip(offered, _goodputs(curve, offered, unit), strict=True) if g > 0}
    scale = (spec.requested * unit if rigid else 1) / min(kept.values(), default=1.0)
    has = (job.target.gpu_type, job.target.replicas * unit)
    current = next((c for c in kept if (c.gpu_type, c.gpus) == has), None)
    return Row(job, tuple(kept), tuple(g * scale for g in kept.values()), current)


def is_rigid(job: JobView) -> bool:
    """One size only: asked for so, or nothing is known about other sizes."""
    return not job.spec.elastic or job.spec.batch is None


def _sizes(job: JobView, curve: Curve, configs: Sequence[Config]) -> list[Config]:
    """Those within the job's bounds and not beyond twice what was measured, where its curve ends."""
    spec, unit = job.spec, job.spec.gpus_per_replica
    most = min(2 * curve.max_profiled_replicas, spec.worker.max)
    if spec.batch is not None:
        most = min(most, spec.batch.max // spec.batch.per_gpu_min)
    able = [c for c in configs if c.gpus % unit == 0 and spec.worker.min <= c.gpus // unit <= spec.worker.max]
    # the smallest is always offered, also where one step from what was measured would be larger than that
    return [c for i, c in enumerate(able) if i == 0 or c.gpus // unit <= most]


def _requested(gpu_type: str, configs: Sequence[Config], gpus: int) -> Config:
    nodes = next((config.nodes for config in configs if config.gpus >= gpus), configs[-1].nodes)
    return Config(gpu_type, nodes, gpus)


def _goodputs(curve: Curve, configs: Sequence[Config], unit: int) -> list[float]:
    """Of each configuration (those of a type stand together); 1 of all before anything is known."""
    if not curve.fitted:
        return [1.0] * len(configs)
    found: list[float] = []
    for gpu_type in dict.fromkeys(config.gpu_type for config in configs):
        of = [config for config in configs if config.gpu_type == gpu_type]
        replicas = np.array([c.gpus // unit for c in of])
        nodes = np.minimum([c.nodes for c in of], replicas)
        found += curve.goodput(nodes, replicas, gpu_type).tolist()
    return found
