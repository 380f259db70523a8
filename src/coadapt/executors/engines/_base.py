"""The contract of an engine: it grants and returns room on nodes, and is asked for nothing else.

The hub claims a **unit**, room for one agent on one node, when a job is placed there, and releases it when nothing has used it
for a while. In the unit runs ``coadapt node join`` with the variables of ``Unit.environment``; from then on everything is between
agent and hub, the same for every engine.

An adapter is a class in a module of its own in this package, with ``name`` and the methods below. It keeps nothing that matters:
after a crash the hub asks ``units`` again. ``coadapt.testing.EngineConformance`` checks it against a real engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from coadapt.errors import CoadaptError
from coadapt.model import Fact, Node

#: Variables by which ``coadapt node join`` knows in which room of an engine it runs: the unit's name (none in a pilot), a text that
#: no other life of this room has, and the time until the room is taken away, as Slurm writes it.
UNIT, GENERATION, REMAINING = "COADAPT_UNIT", "COADAPT_GENERATION", "COADAPT_REMAINING"
#: When the job that a process runs in is taken away, in unix seconds, as newer releases of Slurm say it.
JOB_END = "SLURM_JOB_END_TIME"
#: Longest part of a node's name in the name of a unit.
_MOST_NAME = 40


class EngineSilentError(CoadaptError):
    """The engine does not answer, or not in a form that can be believed. Nothing follows from it."""


class EngineRefusedError(CoadaptError):
    """The engine will not do this: no rights, no such partition or namespace. The message says what to do."""


class EngineNode(Fact, frozen=True):
    """A node as the engine sees it."""

    node: Node
    #: Why nothing new may run there (drained, cordoned, down), in the engine's words; empty: it may.
    closed: str = ""


class Unit(Fact, frozen=True):
    """Room for one agent."""

    #: Never used again.
    name: str
    node: Node
    #: What the agent in it needs to know; the token is in it, and must not get onto a command line.
    environment: dict[str, str] = {}


class SeenUnit(Fact, frozen=True):
    """A unit as the engine sees it. Several may have one name, after an engine revived one."""

    name: str
    #: waiting: the engine has not granted it; running: its agent may run; ending: asked to end, processes may be left; ended.
    state: Literal["waiting", "running", "ending", "ended"]
    #: The engine's own reason for waiting, or for its end.
    reason: str = ""


class Engine(Protocol):
    """Called from one thread; every method may block for seconds, and raises ``EngineSilentError`` instead of guessing."""

    def nodes(self) -> Sequence[EngineNode]:
        """Returns all nodes that units may be claimed on; one request to the engine for all."""

    def claim(self, unit: Unit) -> None:
        """Asks for room, and returns before it is granted. Idempotent by the unit's name, as far as the engine allows; EngineRefusedError."""

    def release(self, names: Sequence[str]) -> None:
        """Gives room back: what runs there gets SIGTERM, then time to save, then SIGKILL. Unknown names are nothing."""

    def units(self) -> Sequence[SeenUnit]:
        """Returns every unit of this cluster that the engine knows; one request for all. One that is not there has ended, or is
        forgotten: the hub tells these apart by leases, never by this.
        """

    def script(self, unit: Unit) -> str:
        """Returns what ``claim`` would submit or apply, for people to read, without secrets."""


def unit_name(cluster: str, node: str, number: int) -> str:
    """Returns the name of a unit: letters, digits and dashes, at most 63 of them, as every engine takes."""
    return f"{prefix_of(cluster)}{re.sub(r'[^a-z0-9]+', '-', node.lower())[:_MOST_NAME].strip('-')}-{number}"


def prefix_of(cluster: str) -> str:
    """Returns what the names of all units of a cluster begin with, ``cluster`` being the identity of its log."""
    return f"coadapt-{cluster[:8]}-"


def environment_of(unit: str, *, url: str, token: str, node: str, ca: str = "") -> Mapping[str, str]:
    """Returns the variables by which ``coadapt node join`` in a unit knows what it is."""
    found = {
        UNIT: unit,
        "COADAPT_URL": url,
        "COADAPT_NODE_TOKEN": token,
        "COADAPT_NODE": node,
        "COADAPT_CA": ca,
    }
    return {name: value for name, value in found.items() if value}
