"""The place of this replica among the others, and the process group of one generation of replicas.

The place is read once from the environment that launchers set (torchrun's variables and ours). A generation is one fixed set of
replicas: an attempt begins with generation 0, and every resize in place begins the next one. Replicas meet at a store: the
launcher's or keeper's (``COADAPT_STORE``), which outlives any replica, else one at MASTER_ADDR:MASTER_PORT, hosted by the first replica.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

# Imported before any process group exists: its functions take the default group of that moment as a default argument, and would
# keep the group and its threads alive after ``Group.close``. PyTorch imports it with the first optimizer.
import torch.distributed.nn.functional
from torch import Tensor

from coadapt.errors import InputError
from coadapt.torch.elastic.plain_data import pack, unpack
from coadapt.torch.elastic.sealed_store import (
    SEAL_BYTES,
    ForgedError,
    SealedStore,
    hosted_store,
    in_namespace,
    seal,
    secret_of,
)
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
        return in_namespace(store, self.place.namespace, secret_of())

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
        assert self._address is not None
        if _is_loopback(self._address[0]):
            # else gloo listens at the address of the host's name
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.PrefixStore(f"generation{self.generation}", self._group_store())
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=store, rank=self.place.rank, world_size=self.place.replicas, timeout=_PATIENCE
        )
        self._owns_group = True

    def _group_store(self) -> dist.Store:
        """The store that the process group uses: not the sealed one for NCCL, whose threads may not call Python at exit."""
        assert self._store is not None
        if self.device.type != "cuda" or not isinstance(self._store, SealedStore):
            return self._store
        return self._store.unsealed

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
        return self.received(self.sent(lambda: pack(value) if self.place.first else None))

    def to_first(self, value: Any) -> list[Any] | None:
        """The values of all replicas by rank, on the first one; None on the others."""
        if self.place.replicas == 1:
            return [value]
        data = self._with_seal(pack(value))
        sizes = self.sum(
            [float(data.numel() * (rank == self.place.rank)) for rank in range(self.place.replicas)]
        )
        room = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        room[: data.numel()] = data
        rooms = [torch.empty_like(room) for _ in sizes] if self.place.first else None
        dist.gather(room, rooms, dst=0)
        if rooms is None:
            return None
        return [self.received(each[: int(size)]) for each, size in zip(rooms, sizes, strict=True)]

    def sent(self, make: Callable[[], Tensor | None]) -> Tensor:
        """Bytes that ``make`` returns on the first replica, sealed, on all replicas; all call it together.

        Where it raises an InputError there, all replicas do.
        """
        data, fault = None, ""
        if self.place.first:
            try:
                data = make()
            except InputError as error:
                fault = str(error)
                data = torch.frombuffer(bytearray(fault.encode()), dtype=torch.uint8)
            assert data is not None
            data = self._with_seal(data)
        size = torch.tensor([0 if data is None else data.numel(), bool(fault)], dtype=torch.int64)
        dist.broadcast(size, src=0)
        length, failed = map(int, size)
        if data is None:
            data = torch.empty(length, dtype=torch.uint8)
        dist.broadcast(data, src=0)
        if failed:
            raise InputError(fault or self._without_seal(data).numpy().tobytes().decode(errors="replace"))
        return data

    def received(self, data: Tensor) -> Any:
        """What was packed and sealed in ``data``; ForgedError if it was not sealed by this attempt."""
        return unpack(self._without_seal(data))

    def _with_seal(self, data: Tensor) -> Tensor:
        if not (secret := secret_of()):
            return data
        mark = seal(secret, self.place.namespace, memoryview(data.numpy())).encode()
        return torch.cat([torch.frombuffer(bytearray(mark), dtype=torch.uint8), data])

    def _without_seal(self, data: Tensor) -> Tensor:
        if not (secret := secret_of()):
            return data
        mark, rest = data[:SEAL_BYTES], data[SEAL_BYTES:]
        right = seal(secret, self.place.namespace, memoryview(rest.contiguous().numpy()))
        if not hmac.compare_digest(mark.numpy().tobytes(), right.encode()):
            raise ForgedError("data of another replica were not sealed with this attempt's secret")
        return rest


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
        _hosted.append(hosted_store(host, int(port), timeout=_PATIENCE))
    return host, int(port)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


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
