"""The place of this replica among the others, and the process group of one generation of replicas.

The place is read once from the environment that launchers set (torchrun's variables and ours). A generation is one fixed set of
replicas: an attempt begins with generation 0, and every resize in place begins the next one. Replicas meet at a store: the
launcher's or keeper's (``COADAPT_STORE``), which outlives any replica, else one at MASTER_ADDR:MASTER_PORT, hosted by the first replica.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

# Imported before any process group exists: its functions take the default group of that moment as a default argument, and would
# keep the group and its threads alive after ``Group.close``. PyTorch imports it with the first optimizer.
import torch.distributed.nn.functional

from coadapt.errors import InputError
from coadapt.wire.agent import Variable


class Place(NamedTuple):
    """This replica among the others."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0
    local_replicas: int = 1
    #: The job's name and attempt, where a scheduler started it.
    job: str = ""
    attempt: int = 0
    #: How often torchrun or a keeper has restarted all replicas of the attempt.
    restarts: int = 0
    #: Machines, if the environment names their number; else 0.
    known_nodes: int = 0

    @property
    def namespace(self) -> str:
        """Prefix of keys in the store: an attempt must not find the keys of an earlier one."""
        return f"coadapt/{self.job}/{self.attempt}/{self.restarts}"

    @property
    def nodes(self) -> int:
        """Machines; if their number is not known, each is taken to have as many replicas as this one."""
        return self.known_nodes or max(-(-self.replicas // self.local_replicas), 1)

    @property
    def first(self) -> bool:
        """Whether this is the first replica, which logs, reports and saves for all."""
        return self.rank == 0


def here(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that the environment names; a single replica if it names none."""
    replicas = _number(environment, "WORLD_SIZE", 1, least=1)
    rank = _number(environment, "RANK", 0, least=0)
    if rank >= replicas:
        raise InputError(f"RANK={rank} with WORLD_SIZE={replicas}: ranks count from 0")
    return Place(
        rank=rank,
        replicas=replicas,
        local_rank=_number(environment, "LOCAL_RANK", rank, least=0),
        local_replicas=_number(environment, "LOCAL_WORLD_SIZE", replicas, least=1),
        job=environment.get(Variable.JOB, ""),
        attempt=_number(environment, Variable.ATTEMPT, 0, least=0),
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0, least=0),
        known_nodes=_number(environment, "GROUP_WORLD_SIZE", 0, least=0),
    )


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InputError(f"{name}={text!r}: it must be a whole number of at least {least}")
    return value


_PATIENCE = timedelta(seconds=300)


class Group:
    """What replicas do together, apart from gradients. With one replica everything is at home."""

    def __init__(self, place: Place, device: torch.device, *, generation: int = 0) -> None:
        self.place, self.device, self.generation = place, device, generation
        self._address = _store_address(place)
        self._store = self.connect()
        self._owns_group = self.abandoned = False

    def connect(self) -> dist.Store | None:
        """A new connection to the store (one per thread); None if there is no store."""
        if self._address is None:
            return None
        host, port = self._address
        store = dist.TCPStore(host, port, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        # the store may outlive an attempt, and serve other jobs
        return dist.PrefixStore(self.place.namespace, store)

    def open(self) -> None:
        """Join the process group of this generation; a single replica has none."""
        if self.place.replicas == 1:
            return
        if dist.is_initialized():
            if dist.get_world_size() != self.place.replicas:
                raise InputError(
                    "a process group of another size already exists; let coadapt.init() create it"
                )
            return
        assert self._store is not None
        store = dist.PrefixStore(f"generation{self.generation}", self._store)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=store, rank=self.place.rank, world_size=self.place.replicas, timeout=_PATIENCE
        )
        self._owns_group = True

    def abandon(self) -> None:
        """The process is about to exit without leaving the group."""
        self.abandoned, self._owns_group = True, False

    def close(self) -> None:
        """Leave the group."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all replicas, bit for bit the same on each."""
        if self.place.replicas == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def from_first(self, value: Any) -> Any:
        """The first replica's ``value``, on all replicas."""
        if self.place.replicas == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def to_first(self, value: Any) -> list[Any] | None:
        """The values of all replicas by rank, on the first one; None on the others."""
        if self.place.replicas == 1:
            return [value]
        found: list[Any] | None = [None] * self.place.replicas if self.place.first else None
        dist.gather_object(value, found, dst=0)
        return found


def _store_address(place: Place) -> tuple[str, int] | None:
    """Host and port of the store; started here if this replica hosts it."""
    if known := os.environ.get(Variable.STORE):
        return _parsed(known)
    if place.replicas == 1:
        return None
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise InputError(
            f"WORLD_SIZE={place.replicas}, but MASTER_ADDR and MASTER_PORT are not set; "
            "start the script with torchrun or python -m coadapt.torch.launch"
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
    """The GPU type in measurements: the scheduler's name for it, if it has given one."""
    return os.environ.get(Variable.GPU_TYPE) or ("gpu" if device.type == "cuda" else device.type)
