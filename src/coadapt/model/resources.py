"""Resources are vectors: GPUs, CPU cores, memory and named extras, on nodes and per replica."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from coadapt.errors import InputError
from coadapt.model._base import Fact

#: Amounts other than GPUs are floats: sums of what comes and goes are only this exact.
ROUNDING = 1 + 1e-9


class Resources(Fact, frozen=True):
    """The demand of one replica. Its GPUs are of the type of the node on which it runs."""

    gpus: int = 1
    cpus: float = 0.0
    memory_bytes: float = 0.0
    extras: dict[str, float] = {}

    def only_gpus(self) -> bool:
        """True if nothing but GPUs is asked for, which is the usual case in a trace."""
        return not (self.cpus or self.memory_bytes or self.extras)

    def others(self, replicas: int) -> Iterator[tuple[str, float]]:
        """Returns what ``count`` replicas need besides GPUs, by name."""
        if self.cpus:
            yield "cpus", self.cpus * replicas
        if self.memory_bytes:
            yield "memory_bytes", self.memory_bytes * replicas
        for name, amount in self.extras.items():
            yield name, amount * replicas


class Node(Fact, frozen=True):
    """One machine. ``None`` means: not limited (a trace says nothing about CPU or memory)."""

    name: str
    gpus: int
    gpu_type: str = "gpu"
    cpus: float | None = None
    memory_bytes: float | None = None
    extras: dict[str, float] = {}
    #: Bandwidth of the node's link to the others, bytes/s; None: not known, not limiting.
    link_bytes_per_s: float | None = None

    def limit(self, name: str) -> float:
        """Returns the amount of a resource other than GPUs: inf if not limited, 0 of an extra that is not offered."""
        if name == "cpus":
            return math.inf if self.cpus is None else self.cpus
        if name == "memory_bytes":
            return math.inf if self.memory_bytes is None else self.memory_bytes
        return self.extras.get(name, 0.0)

    def takes(self, demand: Resources, most: int) -> int:
        """Replicas, up to ``most``, that find all they need on the node when nothing else is there."""
        if demand.gpus:
            most = min(most, self.gpus // demand.gpus)
        for name, amount in demand.others(1):
            if amount > 0:
                most = int(min(most, self.limit(name) * ROUNDING / amount))
        return most


class Cluster(Fact, frozen=True):
    """The nodes, in an order that never changes (ties in placement are broken by it)."""

    nodes: tuple[Node, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs of all types."""
        return sum(node.gpus for node in self.nodes)

    def gpus_by_type(self) -> dict[str, int]:
        """GPUs per type, in order of first appearance."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            counts[node.gpu_type] = counts.get(node.gpu_type, 0) + node.gpus
        return counts


_GROUP = re.compile(r"(\d+)x(\d+)(?::([A-Za-z][\w.-]*))?")
_LARGEST = 1_000_000


def parse_cluster(text: str, *, link_bytes_per_s: float | None = None) -> Cluster:
    """A cluster in shorthand: "16x4" is 16 nodes of 4 GPUs; "6x4:t4,2x8:a100" a mixed one.

    ``+`` joins groups as ``,`` does: it is written where a comma separates several clusters.
    """
    text = text.replace("+", ",")
    nodes: list[Node] = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if not match or int(match[1]) == 0 or int(match[2]) == 0:
            raise InputError(
                f"{part.strip()!r} is not a group of nodes; write NODESxGPUS[:TYPE], for example 16x4 or 6x4:t4,2x8:a100"
            )
        count, gpus = int(match[1]), int(match[2])
        if (len(nodes) + count) * gpus > _LARGEST:
            raise InputError(f"cluster {text!r} has more than {_LARGEST:,} GPUs")
        for _ in range(count):
            name = f"n{len(nodes)}"
            nodes.append(
                Node(name=name, gpus=gpus, gpu_type=match[3] or "gpu", link_bytes_per_s=link_bytes_per_s)
            )
    return Cluster(nodes=tuple(nodes))


def format_cluster(cluster: Cluster) -> str:
    """Formats a cluster in shorthand; equal neighbouring nodes are joined."""
    groups: list[tuple[int, int, str]] = []
    for node in cluster.nodes:
        if groups and groups[-1][1:] == (node.gpus, node.gpu_type):
            groups[-1] = (groups[-1][0] + 1, node.gpus, node.gpu_type)
        else:
            groups.append((1, node.gpus, node.gpu_type))
    return ",".join(f"{n}x{g}" + ("" if t == "gpu" else f":{t}") for n, g, t in groups)
