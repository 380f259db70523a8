"""What workers and parameter servers say to each other, over a process group of their own.

A worker's message is a header (what follows, how long, learning rates) and a vector; a server answers with a vector. In the
group workers come first, by rank, then servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

#: Learning rates that a header has room for.
MOST_GROUPS = 61
PATIENCE = timedelta(seconds=300)
_HEADER, _BODY, _ANSWER = 1, 2, 3


class Kind(IntEnum):
    """What a worker wants."""

    SUM = 1  # the sum of all workers' vectors
    APPLY = 2  # a step with this gradient, and the parameters after it
    STATE = 3  # the state of the server's optimizer
    BYE = 4


class Setting(msgspec.Struct, frozen=True):
    """What a server is told when it starts."""

    index: int
    servers: int
    workers: int
    store: tuple[str, int]
    #: Steps that a worker may be ahead of the slowest; -1: any number.
    staleness: int = -1


class Header(msgspec.Struct, frozen=True):
    """What comes before a vector."""

    kind: Kind
    numel: int = 0
    dtype: int = 0
    rates: tuple[float, ...] = ()


_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Line:
    """One member's end of the group."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("servers", store), rank, size, PATIENCE)

    def say(
        self, to: int, kind: Kind, vector: Tensor | None = None, rates: Sequence[float] = ()
    ) -> list[Any]:
        """A header, and a vector if there is one; what is returned must be waited for."""
        numel = 0 if vector is None else vector.numel()
        dtype = 0 if vector is None else _DTYPES.index(vector.dtype)
        numbers = [float(kind), float(numel), float(dtype), *rates]
        header = torch.tensor(numbers + [0.0] * (MOST_GROUPS + 3 - len(numbers)), dtype=torch.float64)
        sent = [(self._group.send([header], to, _HEADER), header)]
        if vector is not None and numel:
            sent.append((self._group.send([vector], to, _BODY), vector))
        return sent

    def hear(self, expected: int | None = None) -> tuple[int, Header]:
        """The next header, of one worker or of whoever comes first; and whose it is."""
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
        """What follows a header."""
        found = torch.empty(header.numel, dtype=_DTYPES[header.dtype])
        if header.numel:
            self._group.recv([found], source, _BODY).wait()
        return found

    def answer(self, to: int, vector: Tensor) -> Any:
        """A server's answer; to be waited for."""
        return self._group.send([vector], to, _ANSWER), vector

    def listen(self, server: int, into: Tensor) -> Any:
        """A worker's place for the answer; to be waited for."""
        return self._group.recv([into], server, _ANSWER), into


def wait(works: Sequence[Any]) -> None:
    """Until all have been sent or received."""
    for work, _ in works:
        work.wait()
