"""The GPUs of this machine: by NVML where pynvml is installed, else by nvidia-smi; none is an answer too.

Numbers are NVML's, which are CUDA's where CUDA_DEVICE_ORDER is PCI_BUS_ID (the keeper sets it for replicas).
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

log = logging.getLogger(__name__)
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
    """The GPUs this process may use: CUDA_VISIBLE_DEVICES hides the others."""
    found = _by_nvml()
    if found is None:
        found = _by_command()
    return allowed(found, environment.get("CUDA_VISIBLE_DEVICES"))


def allowed(found: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Those that ``visible`` names, by index or by the beginning of their uuid; all, if it is None."""
    if visible is None:
        return list(found)
    chosen: list[Gpu] = []
    for name in (part.strip() for part in visible.split(",")):
        match = [g for g in found if name and (name == str(g.number) or _begins(g.uuid, name))]
        if not match:
            break  # CUDA too stops at the first that it does not know
        chosen.append(match[0])
    return chosen


def short_name(name: str) -> str:
    """The type as clusters name it: "NVIDIA A100-SXM4-40GB" is an a100."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and w not in _VENDOR]
    if not words:
        return "gpu"
    return "".join(words[:2]) if words[0] in _FAMILY else words[0]


def _begins(uuid: str, name: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)


def _by_nvml() -> list[Gpu] | None:
    """None: it cannot be asked."""
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
        log.warning("NVML does not list its devices: %s", error)
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
