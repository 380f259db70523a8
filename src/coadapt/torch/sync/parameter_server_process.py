"""A parameter server process (``python -m coadapt.torch.sync.parameter_server_process SETTING``), and its messages.

A worker starts it; it exits with that worker. Workers and servers have a process group of their own: workers first, by rank, then
servers. A worker's message is a header (kind, length, learning rates) and a vector; a server responds with a vector.

Synchronous: the server sums the vectors of all workers and sends the sum to all; they make the same step. Asynchronous: it holds a
slice of the parameters and an optimizer of its own, steps with every gradient that arrives, and responds with the parameters; a
worker more than ``staleness`` steps ahead of the slowest waits for its response.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from importlib import import_module
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.torch.elastic.plain_data import pack, unpack
from coadapt.torch.elastic.sealed_store import in_namespace, secret_of

#: Learning rates that a header has room for.
MOST_GROUPS = 61
PATIENCE = timedelta(seconds=300)
#: Of the keys in the store of workers and servers.
NAMESPACE = "coadapt/servers"
_HEADER, _BODY, _RESPONSE = 1, 2, 3


class Kind(IntEnum):
    """What a worker requests."""

    SUM = 1  # the sum of all workers' vectors
    APPLY = 2  # a step with this gradient, and the parameters after it
    STATE = 3  # the state of the server's optimizer
    BYE = 4


class Setting(msgspec.Struct, frozen=True):
    """The command-line argument of a server, as JSON."""

    index: int
    servers: int
    workers: int
    store: tuple[str, int]
    #: Most steps that a worker may be ahead of the slowest; -1: any number.
    staleness: int = -1
    #: Class of the optimizer, MODULE:NAME.
    optimizer: str = ""


class Header(msgspec.Struct, frozen=True):
    """The header of a message."""

    kind: Kind
    numel: int = 0
    dtype: int = 0
    rates: tuple[float, ...] = ()


_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Channel:
    """The connection of one member to the others."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("servers", store), rank, size, PATIENCE)

    def send(
        self, to: int, kind: Kind, vector: Tensor | None = None, rates: Sequence[float] = ()
    ) -> list[Any]:
        """Send a request and its vector, if there is one; pass the result to ``wait``.

        ``to`` is the member, ``kind`` the request, ``rates`` are the learning rates of the parameter groups.
        """
        numel = 0 if vector is None else vector.numel()
        dtype = 0 if vector is None else _DTYPES.index(vector.dtype)
        numbers = [float(kind), float(numel), float(dtype), *rates]
        header = torch.tensor(numbers + [0.0] * (MOST_GROUPS + 3 - len(numbers)), dtype=torch.float64)
        sent = [(self._group.send([header], to, _HEADER), header)]
        if vector is not None and numel:
            sent.append((self._group.send([vector], to, _BODY), vector))
        return sent

    def receive(self, expected: int | None = None) -> tuple[int, Header]:
        """Receive the next header, from the ``expected`` worker or from any; returns its sender too."""
        numbers = torch.zeros(MOST_GROUPS + 3, dtype=torch.float64)
        if expected is None:
            coming = self._group.recv_anysource([numbers], _HEADER)
            coming.wait()
            source = int(coming._source_rank())
        else:
            self._group.recv([numbers], expected, _HEADER).wait()
            source = expected
        kind, numel, dtype, *rates = numbers.tolist()
        return source, Header(Kind(int(kind)), int(numel), int(dtype), tuple(rates))

    def vector(self, source: int, header: Header) -> Tensor:
        """Receive the vector after a header."""
        found = torch.empty(header.numel, dtype=_DTYPES[header.dtype])
        if header.numel:
            self._group.recv([found], source, _BODY).wait()
        return found

    def respond(self, to: int, vector: Tensor) -> Any:
        """Send a server's response; pass the result to ``wait``."""
        return self._group.send([vector], to, _RESPONSE), vector

    def receive_response(self, server: int, into: Tensor) -> Any:
        """Receive a server's response; pass the result to ``wait``."""
        return self._group.recv([into], server, _RESPONSE), into


def wait(works: Sequence[Any]) -> None:
    """Wait until all messages have been sent or received."""
    for work, _ in works:
        work.wait()


_PR_SET_PDEATHSIG = 1


class Server:
    """One parameter server."""

    def __init__(self, setting: Setting, store: dist.Store) -> None:
        self._setting = setting
        size = setting.workers + setting.servers
        self._channel = Channel(store, setting.workers + setting.index, size)
        self._store = store
        #: Only if asynchronous: the optimizer, its slice of the parameters, steps by worker, and workers that wait for a response.
        self._optimizer: torch.optim.Optimizer | None = None
        self._slice = torch.empty(0)
        self._steps = dict.fromkeys(range(setting.workers), 0)
        self._waiting: dict[int, int] = {}

    def run(self) -> None:
        """Serve requests until all workers have left."""
        here = set(range(self._setting.workers))
        while here:
            source, header = self._channel.receive()
            if header.kind is Kind.BYE:
                here.discard(source)
                self._steps.pop(source, None)
                self._respond_to_ready()
            elif header.kind is Kind.SUM:
                self._sum(source, header)
            elif header.kind is Kind.APPLY:
                self._apply(source, header)
            else:
                self._send_state(source)

    def _sum(self, first: int, header: Header) -> None:
        """Sum the vectors of all workers in order of rank: the same bits in every run."""
        parts = {first: self._channel.vector(first, header)}
        for rank in range(self._setting.workers):
            if rank != first:
                _, theirs = self._channel.receive(rank)
                parts[rank] = self._channel.vector(rank, theirs)
        total = parts[0]
        for rank in range(1, self._setting.workers):
            total += parts[rank]
        wait([self._channel.respond(rank, total) for rank in range(self._setting.workers)])

    def _apply(self, source: int, header: Header) -> None:
        gradient = self._channel.vector(source, header)
        if self._optimizer is None:
            packed = self._store.get(f"optimizer/{self._setting.index}")
            self._optimizer, self._slice = _unpacked(packed, self._setting.optimizer)
        begin = 0
        for group, rate in zip(self._optimizer.param_groups, header.rates, strict=False):
            group["lr"] = rate
            for parameter in group["params"]:
                parameter.grad = gradient[begin : begin + parameter.numel()].view_as(parameter)
                begin += parameter.numel()
        self._optimizer.step()
        self._steps[source] += 1
        self._waiting[source] = self._steps[source]
        self._respond_to_ready()

    def _respond_to_ready(self) -> None:
        """Respond to the workers that are not too far ahead."""
        bound = self._setting.staleness
        slowest = min(self._steps.values(), default=0)
        ready = [rank for rank, at in self._waiting.items() if bound < 0 or at - slowest <= bound]
        for rank in ready:
            del self._waiting[rank]
        wait([self._channel.respond(rank, self._slice) for rank in ready])

    def _send_state(self, source: int) -> None:
        data = pack({} if self._optimizer is None else self._optimizer.state_dict())
        size = torch.tensor([data.numel() if self._optimizer is not None else 0], dtype=torch.int64)
        wait([self._channel.respond(source, size)])
        if int(size):
            wait([self._channel.respond(source, data)])


def _unpacked(packed: bytes, optimizer_name: str) -> tuple[torch.optim.Optimizer, Tensor]:
    """The optimizer of a slice, and the slice, of which its parameters are views."""
    packet: Mapping[str, Any] = unpack(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
    module, _, name = optimizer_name.partition(":")
    kind: Any = import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    flat: Tensor = packet["parameters"]
    groups, begin = [], 0
    for options, sizes in packet["groups"]:
        parameters = []
        for size in sizes:
            parameters.append(torch.nn.Parameter(flat[begin : begin + size]))
            begin += size
        groups.append({**options, "params": parameters})
    optimizer: torch.optim.Optimizer = kind(groups)
    if packet["state"]:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": packet["state"]})
    return optimizer, flat


def main() -> None:
    """Run a parameter server with the setting on the command line."""
    # a server never outlives the worker that started it
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        return
    # stopping a job stops its workers, which then tell their servers
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    setting = msgspec.json.decode(sys.argv[1], type=Setting)
    raw = dist.TCPStore(*setting.store, is_master=False, timeout=PATIENCE)
    store = in_namespace(raw, NAMESPACE, secret_of())
    try:
        Server(setting, store).run()
    except RuntimeError:
        # a worker is gone, and the job with it: others report why
        sys.exit(1)


if __name__ == "__main__":
    main()
