"""How distributed jobs slow each other down when they meet on a node.

A job is distributed if it spans several nodes. Two models:

- ``FlatInterference`` (the simulator published with Pollux): every distributed job that shares a node with
  another one makes progress slower by a flat share; agents do not see it in their step times.
- ``LinkSharing``: a node's link is shared by the distributed jobs on it; a job's synchronisation takes as
  many times longer as its most crowded node has distributed jobs. Agents see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from coadapt.model import Placement


@dataclass(frozen=True, slots=True)
class Slowdown:
    """``rate`` multiplies progress, ``sync`` the time of synchronisation."""

    rate: float = 1.0
    sync: float = 1.0


NONE = Slowdown()


class Interference(Protocol):
    """How much a job is slowed down by others on its nodes."""

    @property
    def possible(self) -> bool:
        """False if nothing is ever slowed down: the executor then need not watch who meets whom."""

    def slowdown(self, crowd: int) -> Slowdown:
        """For a job whose most crowded node holds ``crowd`` distributed jobs, itself included."""


@dataclass(frozen=True, slots=True)
class FlatInterference:
    """Pollux' published model."""

    share: float = 0.0

    @property
    def possible(self) -> bool:
        """See ``Interference``."""
        return self.share > 0

    def slowdown(self, crowd: int) -> Slowdown:
        """See ``Interference``."""
        return Slowdown(rate=1.0 - self.share) if crowd > 1 and self.share else NONE


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """Links are shared fairly."""

    possible = True

    def slowdown(self, crowd: int) -> Slowdown:
        """See ``Interference``."""
        return Slowdown(sync=float(crowd)) if crowd > 1 else NONE


class Crowds:
    """Which distributed jobs touch which node, kept as placements change."""

    def __init__(self) -> None:
        self._on: dict[str, set[str]] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}

    def move(self, job: str, placement: Placement) -> list[str]:
        """The job runs on ``placement`` now; returns the jobs whose crowd may have changed, sorted."""
        old = self._nodes.pop(job, ())
        nodes = {slot.node for slot in placement.slots}
        new = tuple(sorted(nodes)) if len(nodes) > 1 else ()
        if not old and not new:
            return []
        for name in old:
            self._on[name].discard(job)
        for name in new:
            self._on.setdefault(name, set()).add(job)
        if new:
            self._nodes[job] = new
        return sorted(self._touching((*old, *new)) | {job})

    def _touching(self, nodes: Iterable[str]) -> set[str]:
        return set().union(*(self._on.get(name, ()) for name in nodes))

    def crowd(self, job: str) -> int:
        """Distributed jobs on the job's most crowded node."""
        return max((len(self._on[name]) for name in self._nodes.get(job, ())), default=0)
