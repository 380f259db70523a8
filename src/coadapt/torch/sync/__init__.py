"""Synchronisation architectures, by the name that ``init(sync=...)`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coadapt.errors import UnknownNameError
from coadapt.torch.sync._base import Sync
from coadapt.torch.sync.ring import Alone, Ring

#: What makes each architecture, from the options that ``init(ddp=...)`` was given.
ARCHITECTURES: dict[str, Callable[[Mapping[str, Any]], Sync]] = {"ring": Ring}


def check(name: str) -> str:
    """The name, if there is such an architecture."""
    if name not in ARCHITECTURES:
        raise UnknownNameError("sync", name, ARCHITECTURES)
    return name


def make(name: str, options: Mapping[str, Any], replicas: int) -> Sync:
    """The architecture for so many replicas."""
    return ARCHITECTURES[check(name)](options) if replicas > 1 else Alone()


__all__ = ["ARCHITECTURES", "Alone", "Ring", "Sync", "check", "make"]
