"""The process group of one generation of replicas, and the store it meets at.

A generation is one fixed set of replicas; an attempt begins with generation 0, a resize in place begins the next one. The
store is the launcher's or the keeper's (``COADAPT_STORE``: it outlives any replica, so any may leave), else the one at
MASTER_ADDR:MASTER_PORT, beside the first replica.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from coadapt.errors import InputError
from coadapt.torch.place import Place

_PATIENCE = timedelta(seconds=300)


class Group:
    """What replicas do together, apart from gradients. With one replica everything is at home."""

    def __init__(self, place: Place, device: torch.device, *, generation: int = 0) -> None:
        self.place, self.device, self.generation = place, device, generation
        self._address = _store_address(place)
        self._store = self.connect()
        self._owns_group = self.abandoned = False

    def connect(self) -> dist.Store | None:
        """A connection to the store of its own (one connection serves one thread); None where there is no store."""
        if self._address is None:
            return None
        host, port = self._address
        store = dist.TCPStore(host, port, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        # the store may outlive an attempt, and hold other jobs
        return dist.PrefixStore(self.place.namespace, store)

    def open(self) -> None:
        """Joins the process group of this generation; nothing to do for a lone replica."""
        if self.place.replicas == 1:
            return
        if dist.is_initialized():
            if dist.get_world_size() != self.place.replicas:
                raise InputError("a process group of another size exists already; let coadapt.init() make it")
            return
        assert self._store is not None
        store = dist.PrefixStore(f"generation{self.generation}", self._store)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=store, rank=self.place.rank, world_size=self.place.replicas, timeout=_PATIENCE
        )
        self._owns_group = True

    def abandon(self) -> None:
        """This process is about to end, and the group with it."""
        self.abandoned, self._owns_group = True, False

    def close(self) -> None:
        """Leaves it."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all replicas; every replica gets the same bits."""
        if self.place.replicas == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def from_first(self, value: Any) -> Any:
        """What the first replica has, on all of them."""
        if self.place.replicas == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def to_first(self, value: Any) -> list[Any] | None:
        """What every replica has, by rank, on the first one; None on the others."""
        if self.place.replicas == 1:
            return [value]
        found: list[Any] | None = [None] * self.place.replicas if self.place.first else None
        dist.gather_object(value, found, dst=0)
        return found


def _store_address(place: Place) -> tuple[str, int] | None:
    """Where the store is; started here if this replica is the one that hosts it."""
    if known := os.environ.get("COADAPT_STORE"):
        return _parsed(known)
    if place.replicas == 1:
        return None
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise InputError(
            f"WORLD_SIZE={place.replicas}, but MASTER_ADDR and MASTER_PORT do not say where replicas meet; "
            "start the script by torchrun or by python -m coadapt.torch.launch"
        )
    hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if place.first and not hosted_by_agent:
        _hosted.append(
            dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False, timeout=_PATIENCE)
        )
    return host, int(port)


#: Keeps the store alive as long as this process.
_hosted: list[dist.Store] = []


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"COADAPT_STORE={address!r}: it must be HOST:PORT")
    return host, int(port)


def pick_device(place: Place) -> torch.device:
    """The GPU of this replica, or the CPU."""
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def gpu_type(device: torch.device) -> str:
    """What measurements call the device: the scheduler's word for it, if it has said one."""
    return os.environ.get("COADAPT_GPU_TYPE") or ("gpu" if device.type == "cuda" else device.type)
