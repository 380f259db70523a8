"""Synchronisation architectures, by the name that ``init(sync=...)`` takes.

ring                 all-reduce through PyTorch, overlapping with the backward pass
ring-late            the same in one piece when the backward pass is over
central              gather and broadcast by the first replica
servers:P            P parameter servers, synchronous
async-servers:P[:S]  P parameter servers, asynchronous; replicas at most S steps apart
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coadapt.errors import InputError, UnknownNameError
from coadapt.torch.sync._base import Sync
from coadapt.torch.sync.central import Central
from coadapt.torch.sync.ring import Alone, LateRing, Ring

#: How many numbers may follow each name.
ARCHITECTURES = {"ring": 0, "ring-late": 0, "central": 0, "servers": 1, "async-servers": 2}


def check(text: str) -> str:
    """The text, if there is such an architecture."""
    name, numbers = _parsed(text)
    if name not in ARCHITECTURES:
        raise UnknownNameError("sync", name, ARCHITECTURES)
    if len(numbers) > ARCHITECTURES[name] or (numbers and numbers[0] < 1) or any(n < 0 for n in numbers):
        raise InputError(f"sync={text!r}: it must be {_forms(name)}")
    return text


def make(text: str, options: Mapping[str, Any], replicas: int) -> Sync:
    """The architecture for ``replicas`` replicas; ``options`` are those of ``init(ddp=...)``."""
    name, numbers = _parsed(check(text))
    if name.endswith("servers"):
        # loaded here, not with the package: a parameter server is started as a module of it (python -m)
        from coadapt.torch.sync.parameter_servers import AsyncServers, Servers

    if name == "servers":
        return Servers(*(numbers or [1]))
    if name == "async-servers":
        return AsyncServers(*(numbers or [1]))
    if replicas == 1:
        return Alone()
    return Ring(options) if name == "ring" else LateRing() if name == "ring-late" else Central()


def in_step(text: str) -> bool:
    """Whether replicas make every step together in this architecture."""
    return _parsed(text)[0] != "async-servers"


def _parsed(text: str) -> tuple[str, list[int]]:
    name, *rest = str(text).split(":")
    return name, [int(each) if each.isdigit() else -1 for each in rest]


def _forms(name: str) -> str:
    return {1: "servers or servers:P", 2: "async-servers, async-servers:P or async-servers:P:S"}.get(
        ARCHITECTURES[name], name
    )


__all__ = ["ARCHITECTURES", "Alone", "Central", "Ring", "Sync", "check", "in_step", "make"]
