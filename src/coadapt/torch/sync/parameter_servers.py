"""Parameter servers, the workers' side: every gradient is cut into one slice per server.

Synchronous (BSP): servers sum the slices of all workers, and every replica steps with the sum: the same training as with a ring.
Asynchronous (ASP, or with bounded staleness): servers hold parameters and optimizer; a worker sends its share of the gradient and
continues with the parameters that it receives. The learning rate has the same meaning in both: the shares of all workers
in one round add up to one synchronous step.

Server k is a process that worker k (modulo workers) starts and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from coadapt.errors import InputError
from coadapt.torch.elastic.plain_data import pack, unpack
from coadapt.torch.elastic.process_group import Group
from coadapt.torch.elastic.sealed_store import hosted_store, in_namespace, secret_of
from coadapt.torch.sync._base import InStep, by_kind, flattened, parameters_of, slices
from coadapt.torch.sync.parameter_server_process import (
    MOST_GROUPS,
    NAMESPACE,
    PATIENCE,
    Channel,
    Kind,
    Setting,
    wait,
)
from coadapt.wire.agent import Variable


class Servers(InStep):
    """Implements ``Sync``, synchronously, with ``count`` servers."""

    def __init__(self, count: int, staleness: int = -1) -> None:
        self.count, self.staleness = count, staleness
        self._started: list[subprocess.Popen[bytes]] = []
        self._hosted: dist.Store | None = None
        self._channel: Channel | None = None
        self._workers = self._rank = 0

    def open(self, group: Group, optimizer: Optimizer) -> None:
        """See ``Sync``: start the servers and connect to them."""
        place = group.place
        self._workers, self._rank = place.replicas, place.rank
        address = None
        if place.first:
            host = os.environ.get("MASTER_ADDR", "127.0.0.1") if place.replicas > 1 else "127.0.0.1"
            self._hosted = hosted_store(host, timeout=PATIENCE)
            address = host, self._hosted.port
        address = group.from_first(address)
        assert address is not None
        raw = self._hosted or dist.TCPStore(*address, is_master=False, timeout=PATIENCE)
        store = in_namespace(raw, NAMESPACE, secret_of())
        self._before_servers(store, optimizer)
        for index in range(place.rank, self.count, place.replicas):
            setting = Setting(
                index, self.count, place.replicas, tuple(address), self.staleness, _name(optimizer)
            )
            command = [
                sys.executable,
                "-m",
                "coadapt.torch.sync.parameter_server_process",
                msgspec.json.encode(setting).decode(),
            ]
            # servers use no GPU, and must not take themselves for replicas
            environment = {
                k: v for k, v in os.environ.items() if not k.startswith(("COADAPT_", "TORCHELASTIC_"))
            }
            secret = {Variable.STORE_SECRET: secret_of().decode()}
            envs = {**environment, **secret, "CUDA_VISIBLE_DEVICES": ""}
            self._started.append(subprocess.Popen(command, env=envs))
        self._channel = Channel(store, place.rank, place.replicas + self.count)

    def _before_servers(self, store: dist.Store, optimizer: Optimizer) -> None:
        """Publish what servers read when they start: nothing."""

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``."""
        for alike in by_kind(gradients):
            with flattened(alike) as flat:
                self._exchange_slices(Kind.SUM, flat, flat)

    def _exchange_slices(self, kind: Kind, vector: Tensor, into: Tensor, rates: Sequence[float] = ()) -> None:
        """Send a slice of ``vector`` to every server, and write the responses to ``into``.

        ``kind`` is the request, ``rates`` the learning rates of the parameter groups.
        """
        assert self._channel is not None, "open() comes first"
        home = vector.detach().cpu()
        found = torch.empty_like(home)
        receiving, sending = [], []
        for server, (begin, end) in enumerate(slices(home.numel(), self.count), self._workers):
            receiving.append(self._channel.receive_response(server, found[begin:end]))
            sending += self._channel.send(server, kind, home[begin:end], rates)
        wait(sending)
        wait(receiving)
        into.copy_(found)

    def close(self) -> None:
        """See ``Sync``: a server exits when all workers have left."""
        if self._channel is not None:
            for server in range(self._workers, self._workers + self.count):
                wait(self._channel.send(server, Kind.BYE))
        for process in self._started:
            process.wait(timeout=PATIENCE.total_seconds())
        self._started, self._channel = [], None


class AsyncServers(Servers):
    """Implements ``Sync``, asynchronously; workers are at most ``staleness`` steps apart (-1: any number)."""

    in_step = False
    #: a backward pass needs no other replica
    overlaps = True

    def __init__(self, count: int, staleness: int = -1) -> None:
        super().__init__(count, staleness)
        self._optimizer: Optimizer | None = None
        self._weighted = False

    def _before_servers(self, store: dist.Store, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        if len(optimizer.param_groups) > MOST_GROUPS:
            raise InputError(f"asynchronous parameter servers support at most {MOST_GROUPS} parameter groups")
        kinds = {(p.dtype, p.device) for p in self._parameters()}
        if len(kinds) > 1:
            raise InputError("asynchronous parameter servers need all parameters of one dtype on one device")
        if self._rank == 0:
            for index, packed in enumerate(_packed(optimizer, self.count)):
                store.set(f"optimizer/{index}", packed)

    def exchange(self, gradients: Sequence[Tensor]) -> None:
        """See ``Sync``: servers do the sum; the gradient is already weighted."""
        self._weighted = True

    def update(self, step: Callable[[], Any]) -> Any:
        """See ``Sync``: the servers make the step."""
        assert self._optimizer is not None
        parameters = self._parameters()
        share = 1.0 if self._weighted else 1.0 / self._workers
        self._weighted = False
        gradient = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
        ).mul_(share)
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        with torch.no_grad(), flattened([p.data for p in parameters]) as flat:
            self._exchange_slices(Kind.APPLY, gradient, flat, rates)

    def pull_state(self) -> None:
        """See ``Sync``: the servers have the optimizer's state."""
        if self._rank or self._channel is None or self._optimizer is None:
            return
        states = []
        for server in range(self._workers, self._workers + self.count):
            wait(self._channel.send(server, Kind.STATE))
            size = torch.zeros(1, dtype=torch.int64)
            wait([self._channel.receive_response(server, size)])
            data = torch.empty(int(size), dtype=torch.uint8)
            if int(size):
                wait([self._channel.receive_response(server, data)])
                states.append(unpack(data)["state"])
        if len(states) == self.count:
            _unpack(self._optimizer, states)

    def _parameters(self) -> list[Tensor]:
        assert self._optimizer is not None
        return parameters_of(self._optimizer)


def _cuts(optimizer: Optimizer, count: int) -> list[list[tuple[int, int, int, int]]]:
    """(group, parameter, begin, end) of the pieces of parameters in the slice of each server, in order."""
    ends = slices(sum(p.numel() for p in parameters_of(optimizer)), count)
    cuts: list[list[tuple[int, int, int, int]]] = [[] for _ in ends]
    offset = number = 0
    for group_number, group in enumerate(optimizer.param_groups):
        for parameter in (p for p in group["params"] if p.requires_grad):
            for server, (first, last) in enumerate(ends):
                begin = max(first - offset, 0)
                end = min(last - offset, parameter.numel())
                if begin < end:
                    cuts[server].append((group_number, number, begin, end))
            offset += parameter.numel()
            number += 1
    return cuts


def _packed(optimizer: Optimizer, count: int) -> list[bytes]:
    """For each server: its slice of the parameters, with their options and the optimizer's state of them."""
    parameters = parameters_of(optimizer)
    packed = []
    for cuts in _cuts(optimizer, count):
        groups = []
        for number, group in enumerate(optimizer.param_groups):
            sizes = [end - begin for g, _, begin, end in cuts if g == number]
            groups.append(({k: v for k, v in group.items() if k not in ("params", "initial_lr")}, sizes))
        state = {}
        for place, (_, number, begin, end) in enumerate(cuts):
            known = optimizer.state.get(parameters[number], {})
            state[place] = {
                name: _part(value, parameters[number], begin, end) for name, value in known.items()
            }
        packet = {
            "parameters": torch.cat([parameters[n].detach().reshape(-1)[a:b] for _, n, a, b in cuts]).cpu(),
            "groups": groups,
            "state": state if any(state.values()) else {},
        }
        packed.append(pack(packet).numpy().tobytes())
    return packed


def _name(optimizer: Optimizer) -> str:
    """The optimizer's class, for a server, which gets it from the worker that starts it and not over the network."""
    return f"{type(optimizer).__module__}:{type(optimizer).__qualname__}"


def _part(value: Any, parameter: Tensor, begin: int, end: int) -> Any:
    """The piece of an optimizer's state that belongs to a piece of its parameter; a scalar stays whole."""
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return value.detach().reshape(-1)[begin:end].cpu().clone()
    return value


def _unpack(optimizer: Optimizer, states: Sequence[dict[int, dict[str, Any]]]) -> None:
    """Join the servers' states in the worker's optimizer."""
    parameters = parameters_of(optimizer)
    for state, cuts in zip(states, _cuts(optimizer, len(states)), strict=True):
        for place, (_, number, begin, end) in enumerate(cuts):
            parameter = parameters[number]
            mine = optimizer.state[parameter]
            for name, value in state.get(place, {}).items():
                if isinstance(value, Tensor) and value.numel() == end - begin and value.dim() == 1:
                    if name not in mine:
                        mine[name] = torch.zeros_like(parameter)
                    mine[name].reshape(-1)[begin:end].copy_(value)
                else:
                    mine[name] = value
