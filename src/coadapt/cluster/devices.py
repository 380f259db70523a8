"""What a keeper's nodes have, and who holds it: no device is ever given to two replicas.

The node "local" (with several types of GPUs also "local-TYPE") is this machine: its GPUs, or where there are none its CPU
cores, to which replicas are pinned. Nodes of any other name are virtual: so many replicas may run, on whatever there is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from coadapt.cluster.gpus import Gpu, find_gpus
from coadapt.errors import InputError
from coadapt.model import Node
from coadapt.model.resources import ROUNDING

log = logging.getLogger(__name__)
LOCAL, CPU = "local", "cpu"


def this_machine() -> tuple[Node, ...]:
    """The GPUs of this machine as a node, one for each type; without GPUs its CPU cores."""
    gpus = find_gpus()
    types = list(dict.fromkeys(gpu.gpu_type for gpu in gpus))
    if not types:
        return (Node(name=LOCAL, gpus=len(os.sched_getaffinity(0)), gpu_type=CPU),)
    cores, memory = float(len(os.sched_getaffinity(0))), float(_memory_bytes())
    return tuple(
        Node(
            name=LOCAL if len(types) == 1 else f"{LOCAL}-{kind}",
            gpus=sum(gpu.gpu_type == kind for gpu in gpus),
            gpu_type=kind,
            # shared out in proportion, so that no two nodes promise the same core
            cpus=cores * sum(gpu.gpu_type == kind for gpu in gpus) / len(gpus),
            memory_bytes=memory * sum(gpu.gpu_type == kind for gpu in gpus) / len(gpus),
        )
        for kind in types
    )


def is_virtual(node: str) -> bool:
    """Whether a node stands for no hardware of its own."""
    return node != LOCAL and not node.startswith(f"{LOCAL}-")


class Taken(NamedTuple):
    """Devices of one replica: numbers within their node, and how much of each."""

    node: str
    numbers: tuple[int, ...] = ()
    share: float = 1.0


class Devices:
    """The devices of all nodes of one keeper."""

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        gpus: Sequence[Gpu] | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        cores = sorted(os.sched_getaffinity(0)) if cores is None else cores
        #: How much of each device is taken.
        self._used = {node.name: [0.0] * node.gpus for node in nodes}
        #: Names of the hardware, by node; of GPUs as CUDA knows them, of cores by number.
        self._gpus: dict[str, list[str]] = {}
        self._cores: dict[str, list[int]] = {}
        for node in nodes:
            if is_virtual(node.name):
                continue
            if node.gpu_type == CPU:
                if node.gpus <= len(cores):
                    self._cores[node.name] = list(cores[: node.gpus])
                else:
                    log.warning("%d slots on %d cores: replicas are not pinned", node.gpus, len(cores))
            else:
                gpus = find_gpus() if gpus is None else gpus
                self._gpus[node.name] = _named(node, gpus)

    def take(self, node: str, count: int, share: float = 1.0) -> Taken:
        """Devices for one replica; InputError if there are not so many free ones."""
        used = self._used.get(node)
        if used is None:
            raise InputError(f"there is no node {node!r} here; there are {', '.join(self._used)}")
        free = [number for number, taken in enumerate(used) if taken + share <= ROUNDING]
        if len(free) < count:
            raise InputError(f"node {node} has {len(free)} free GPUs, a replica needs {count}")
        for number in free[:count]:
            used[number] += share
        return Taken(node, tuple(free[:count]), share)

    def give_back(self, taken: Taken) -> None:
        """The last process that used them is gone."""
        used = self._used[taken.node]
        for number in taken.numbers:
            used[number] = max(used[number] - taken.share, 0.0)
            if used[number] < ROUNDING - 1:
                used[number] = 0.0

    def visible(self, node: str, numbers: Sequence[int]) -> dict[str, str]:
        """What shows a process these GPUs and no others; nothing where the node has no real ones."""
        if node not in self._gpus:
            return {}
        names = [self._gpus[node][number] for number in numbers]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def cores(self, taken: Taken) -> frozenset[int] | None:
        """The cores a replica is pinned to; None: any."""
        known = self._cores.get(taken.node)
        return frozenset(known[n] for n in taken.numbers) or None if known is not None else None


def _named(node: Node, gpus: Sequence[Gpu]) -> list[str]:
    names = [str(gpu.number) for gpu in gpus if gpu.gpu_type == node.gpu_type]
    if len(names) < node.gpus:
        raise InputError(f"node {node.name} shall offer {node.gpus} {node.gpu_type}; there are {len(names)}")
    return names[: node.gpus]


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
