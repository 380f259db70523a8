"""A parameter server: ``python -m coadapt.torch.sync.serve SETTING``, started by a worker, ends with it.

Synchronous: it adds up what all workers send and sends the sum to all; they step alike. Asynchronous: it holds a slice of the
parameters and its own optimizer, steps with whatever gradient comes, and answers with the parameters; a worker more than
``staleness`` steps ahead of the slowest waits for its answer.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.torch.sync.messages import PATIENCE, Header, Kind, Line, Setting, wait

_PR_SET_PDEATHSIG = 1


class Server:
    """One server's whole life."""

    def __init__(self, setting: Setting, store: dist.Store) -> None:
        self._setting = setting
        size = setting.workers + setting.servers
        self._line = Line(store, setting.workers + setting.index, size)
        self._store = store
        #: Of an asynchronous server.
        self._optimizer: torch.optim.Optimizer | None = None
        self._slice = torch.empty(0)
        self._steps = dict.fromkeys(range(setting.workers), 0)
        self._early: dict[int, int] = {}

    def run(self) -> None:
        """Until all workers have said goodbye."""
        here = set(range(self._setting.workers))
        while here:
            source, header = self._line.hear()
            if header.kind is Kind.BYE:
                here.discard(source)
                self._steps.pop(source, None)
                self._let_go()
            elif header.kind is Kind.SUM:
                self._sum(source, header)
            elif header.kind is Kind.APPLY:
                self._apply(source, header)
            else:
                self._tell_state(source)

    def _sum(self, first: int, header: Header) -> None:
        """The sum of all workers, in order of rank whoever came first: the same bits in every run."""
        parts = {first: self._line.vector(first, header)}
        for rank in range(self._setting.workers):
            if rank != first:
                _, theirs = self._line.hear(rank)
                parts[rank] = self._line.vector(rank, theirs)
        total = parts[0]
        for rank in range(1, self._setting.workers):
            total += parts[rank]
        wait([self._line.answer(rank, total) for rank in range(self._setting.workers)])

    def _apply(self, source: int, header: Header) -> None:
        gradient = self._line.vector(source, header)
        if self._optimizer is None:
            self._optimizer, self._slice = _made(self._store.get(f"optimizer/{self._setting.index}"))
        begin = 0
        for group, rate in zip(self._optimizer.param_groups, header.rates, strict=False):
            group["lr"] = rate
            for parameter in group["params"]:
                parameter.grad = gradient[begin : begin + parameter.numel()].view_as(parameter)
                begin += parameter.numel()
        self._optimizer.step()
        self._steps[source] += 1
        self._early[source] = self._steps[source]
        self._let_go()

    def _let_go(self) -> None:
        """Answers all who are not too far ahead."""
        bound = self._setting.staleness
        slowest = min(self._steps.values(), default=0)
        ready = [rank for rank, at in self._early.items() if bound < 0 or at - slowest <= bound]
        for rank in ready:
            del self._early[rank]
        wait([self._line.answer(rank, self._slice) for rank in ready])

    def _tell_state(self, source: int) -> None:
        memory = io.BytesIO()
        if self._optimizer is not None:
            torch.save(self._optimizer.state_dict(), memory)
        data = torch.frombuffer(bytearray(memory.getvalue() or b"\0"), dtype=torch.uint8)
        size = torch.tensor([data.numel() if self._optimizer is not None else 0], dtype=torch.int64)
        wait([self._line.answer(source, size)])
        if int(size):
            wait([self._line.answer(source, data)])


def _made(packed: bytes) -> tuple[torch.optim.Optimizer, Tensor]:
    """The optimizer of a slice, and the slice: its parameters are views of it, in order."""
    told: Mapping[str, Any] = torch.load(io.BytesIO(packed), weights_only=False)
    flat: Tensor = told["parameters"]
    groups, begin = [], 0
    for options, sizes in told["groups"]:
        parameters = []
        for size in sizes:
            parameters.append(torch.nn.Parameter(flat[begin : begin + size]))
            begin += size
        groups.append({**options, "params": parameters})
    optimizer = told["type"](groups)
    if told["state"]:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": told["state"]})
    return optimizer, flat


def main() -> None:
    """See the module."""
    # a server never outlives the worker that started it
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        return
    # whoever stops the job stops its workers; they say goodbye
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    setting = msgspec.json.decode(sys.argv[1], type=Setting)
    store = dist.TCPStore(*setting.store, is_master=False, timeout=PATIENCE)
    try:
        Server(setting, store).run()
    except RuntimeError:
        # a worker is gone: so is the job, and somebody else says why
        sys.exit(1)


if __name__ == "__main__":
    main()
