"""Messages between the adapter for Ray and the process that speaks with Ray, one a line as JSON."""

from __future__ import annotations

import msgspec

from coadapt.executors.engines._base import SeenUnit


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag=True):
    """A request; each is answered by one ``Reply``."""


class ListNodes(Ask, frozen=True):
    """Asks for all nodes that are alive."""


class ListUnits(Ask, frozen=True):
    """Asks for all actors whose names begin with ``prefix``."""

    prefix: str


class Claim(Ask, frozen=True):
    """Asks for an actor ``name`` on a node, with all of its GPUs or CPUs."""

    name: str
    #: Ray's own name of the node.
    node: str
    gpus: int
    cpus: int
    #: What runs as its child; an empty interpreter is that of the actor.
    command: tuple[str, ...]
    environment: dict[str, str]


class Release(Ask, frozen=True):
    """Asks that actors end; ``kill_wait_s``: from SIGTERM to SIGKILL for their agents."""

    names: tuple[str, ...]
    kill_wait_s: float


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as Ray lists it."""

    id: str
    name: str
    host: str
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    #: Why Ray takes it away; empty: it does not.
    draining: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """``refused``, ``silent``: what went wrong, as ``EngineRefusedError`` and ``EngineSilentError`` say it; the process ends after the latter."""

    nodes: tuple[RayNode, ...] = ()
    units: tuple[SeenUnit, ...] = ()
    refused: str = ""
    silent: str = ""


Request = ListNodes | ListUnits | Claim | Release
