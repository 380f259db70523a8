"""Devices of this machine's nodes: which GPUs there are, and which replica holds each.

A node either has hardware of this machine (its GPUs or, if there are none, its CPU cores, to which replicas are
pinned), or it is virtual: it takes a given number of replicas, which share the hardware. The process that starts the
keeper chooses. No device is ever given to two replicas.

GPUs are found by NVML where pynvml is installed, else by nvidia-smi; finding none is valid. Numbers are NVML's, which
are CUDA's where CUDA_DEVICE_ORDER is PCI_BUS_ID (the keeper sets it for replicas).
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from coadapt.errors import InputError
from coadapt.model import Node
from coadapt.model.resources import ROUNDING

log = logging.getLogger(__name__)
LOCAL, CPU = "local", "cpu"


def this_machine() -> tuple[Node, ...]:
    """Returns the nodes of this machine: one for each GPU type; without GPUs, one with its CPU cores."""
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
            # divided in proportion, so that no two nodes offer the same core
            cpus=cores * sum(gpu.gpu_type == kind for gpu in gpus) / len(gpus),
            memory_bytes=memory * sum(gpu.gpu_type == kind for gpu in gpus) / len(gpus),
        )
        for kind in types
    )


def machine_offer(gpus: str) -> tuple[Node, ...]:
    """Returns the first ``gpus`` GPUs (cores, where there are none) of this machine; "auto": all. InputError for another text."""
    nodes = this_machine()
    if gpus == "auto":
        return nodes
    there = sum(node.gpus for node in nodes)
    if not gpus.isdigit() or not 1 <= int(gpus) <= there:
        raise InputError(
            f"--gpus {gpus!r} must be auto or a number from 1 to {there}, the number on this machine"
        )
    left, found = int(gpus), []
    for node in nodes:
        taken = min(node.gpus, left)
        left -= taken
        if taken:
            found.append(msgspec.structs.replace(node, gpus=taken))
    return tuple(found)


class Taken(NamedTuple):
    """Devices of one replica: numbers within their node, and how much of each."""

    node: str
    numbers: tuple[int, ...] = ()
    share: float = 1.0


class Devices:
    """The devices of all nodes of one keeper.

    Args:
        nodes: nodes with hardware of this machine.
        virtual: virtual nodes.
        gpus: GPUs of this machine; None: found when needed.
        cores: CPU cores that replicas may be pinned to; None: those of this process.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        virtual: Sequence[Node] = (),
        gpus: Sequence[Gpu] | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        cores = sorted(os.sched_getaffinity(0)) if cores is None else cores
        #: How much of each device is taken.
        self._used = {node.name: [0.0] * node.gpus for node in (*nodes, *virtual)}
        self._virtual = frozenset(node.name for node in virtual)
        #: Names of the hardware, by node; of GPUs as CUDA knows them, of cores by number.
        self._gpus: dict[str, list[str]] = {}
        self._cores: dict[str, list[int]] = {}
        for node in nodes:
            if node.gpu_type == CPU:
                if node.gpus <= len(cores):
                    self._cores[node.name] = list(cores[: node.gpus])
                else:
                    log.warning(
                        "replicas are not pinned to cores: %d slots on %d cores", node.gpus, len(cores)
                    )
            else:
                gpus = find_gpus() if gpus is None else gpus
                self._gpus[node.name] = _named(node, gpus)

    def is_virtual(self, node: str) -> bool:
        """Whether a node has no hardware of its own."""
        return node in self._virtual

    def take(self, node: str, count: int, share: float = 1.0) -> Taken:
        """Takes ``count`` devices of ``node`` for one replica; InputError if fewer are free."""
        used = self._used.get(node)
        if used is None:
            raise InputError(f"unknown node {node!r}; this machine has {', '.join(self._used)}")
        free = [number for number, taken in enumerate(used) if taken + share <= ROUNDING]
        if len(free) < count:
            raise InputError(f"node {node} has {len(free)} free GPUs, a replica needs {count}")
        for number in free[:count]:
            used[number] += share
        return Taken(node, tuple(free[:count]), share)

    def give_back(self, taken: Taken) -> None:
        """Frees the devices of a replica whose last process is gone."""
        used = self._used[taken.node]
        for number in taken.numbers:
            used[number] = max(used[number] - taken.share, 0.0)
            if used[number] < ROUNDING - 1:
                used[number] = 0.0

    def visible(self, node: str, numbers: Sequence[int]) -> dict[str, str]:
        """Returns the variables that make only these GPUs visible; none if the node has no real GPUs."""
        if node not in self._gpus:
            return {}
        names = [self._gpus[node][number] for number in numbers]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def cores(self, taken: Taken) -> frozenset[int] | None:
        """Returns the cores to which a replica is pinned; None: any."""
        known = self._cores.get(taken.node)
        return frozenset(known[n] for n in taken.numbers) or None if known is not None else None


def _named(node: Node, gpus: Sequence[Gpu]) -> list[str]:
    names = [str(gpu.number) for gpu in gpus if gpu.gpu_type == node.gpu_type]
    if len(names) < node.gpus:
        raise InputError(
            f"node {node.name} must offer {node.gpus} {node.gpu_type}, but this machine has {len(names)}"
        )
    return names[: node.gpus]


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_ASK = ("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader")
_PATIENCE_S = 30.0
_VENDOR = frozenset(("nvidia", "tesla", "geforce", "quadro", "graphics", "device"))
_FAMILY = frozenset(("rtx", "gtx", "titan"))


class Gpu(NamedTuple):
    """One device. ``gpu_type`` is short: t4, a100, rtx3090."""

    number: int
    uuid: str
    gpu_type: str


def find_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Returns the GPUs that this process may use, as limited by CUDA_VISIBLE_DEVICES."""
    found = _by_nvml()
    if found is None:
        found = _by_command()
    return allowed(found, environment.get("CUDA_VISIBLE_DEVICES"))


def allowed(found: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Returns the GPUs that ``visible`` names, by index or by the beginning of their uuid; all if it is None."""
    if visible is None:
        return list(found)
    chosen: list[Gpu] = []
    for name in (part.strip() for part in visible.split(",")):
        match = [g for g in found if name and (name == str(g.number) or _begins(g.uuid, name))]
        if not match:
            break  # CUDA also stops at the first that it does not know
        chosen.append(match[0])
    return chosen


def short_name(name: str) -> str:
    """Returns the GPU type as clusters name it: "NVIDIA A100-SXM4-40GB" is an a100."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and w not in _VENDOR]
    if not words:
        return "gpu"
    return "".join(words[:2]) if words[0] in _FAMILY else words[0]


def _begins(uuid: str, name: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)


def _by_nvml() -> list[Gpu] | None:
    """GPUs by NVML; None if it is not available."""
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []  # no driver, no GPUs
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [
            Gpu(i, _text(nvml.nvmlDeviceGetUUID(h)), short_name(_text(nvml.nvmlDeviceGetName(h))))
            for i, h in enumerate(handles)
        ]
    except nvml.NVMLError as error:
        log.warning("cannot list GPUs by NVML, trying nvidia-smi: %s", error)
        return None
    finally:
        nvml.nvmlShutdown()


def _by_command() -> list[Gpu]:
    try:
        done = subprocess.run(_ASK, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    found = []
    for line in done.stdout.splitlines():
        index, _, rest = line.partition(",")
        uuid, _, name = rest.partition(",")
        if index.strip().isdigit():
            found.append(Gpu(int(index), uuid.strip(), short_name(name)))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
