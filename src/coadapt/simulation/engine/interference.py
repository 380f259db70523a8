"""Interference: distributed jobs slow each other down when they share a node.

A job is distributed if it spans several nodes. Two models:

- ``FlatInterference`` (the simulator published with Pollux): every distributed job that shares a node with
  another one makes progress slower by a flat share; agents do not see it in their step times.
- ``LinkSharing``: a node's link is shared fairly by the distributed jobs on it, and the job's slowest share decides:
  its synchronisation takes (speed of the links it was measured over / speed of the link) x (distributed jobs on
  the link) times as long, for the node where that is most. A link whose speed is not stated is like those of the
  measurements, so that without any stated speed only the crowd counts. Agents see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from coadapt.model import Placement


@dataclass(frozen=True, slots=True)
class Slowdown:
    """``rate`` multiplies progress, ``sync`` the time of synchronisation; ``partner`` is the profile of a job on the same
    GPUs, for a training that knows its rate beside it.
    """

    rate: float = 1.0
    sync: float = 1.0
    partner: str = ""


NONE = Slowdown()
#: 50 Gbit/s, the link of the nodes that the profiles were measured on (Pollux, OSDI 2021, section 5.1: AWS g4dn.12xlarge).
MEASURED_LINK = 6.25e9


class Link(NamedTuple):
    """The link of one of a distributed job's nodes: distributed jobs on it, the job included, and its speed."""

    crowd: int
    bytes_per_s: float | None = None


class Interference(Protocol):
    """Slowdown of a job by others on its nodes."""

    @property
    def possible(self) -> bool:
        """False if nothing is ever slowed down: the executor then need not watch who meets whom."""

    def slowdown(self, links: Sequence[Link], measured: float = MEASURED_LINK) -> Slowdown:
        """For a job that spans nodes with these links (none: it is on one node) and was measured over ``measured``."""


@dataclass(frozen=True, slots=True)
class FlatInterference:
    """The interference model of the simulator published with Pollux: a flat share of the speed is lost."""

    share: float = 0.0

    @property
    def possible(self) -> bool:
        """False if the share is 0, so that no job is ever slowed down."""
        return self.share > 0

    def slowdown(self, links: Sequence[Link], measured: float = MEASURED_LINK) -> Slowdown:
        """Returns the slowdown of a job that spans nodes with ``links``."""
        crowded = any(link.crowd > 1 for link in links)
        return Slowdown(rate=1.0 - self.share) if crowded and self.share else NONE


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """Links are shared fairly, and some are slower than others."""

    possible = True

    def slowdown(self, links: Sequence[Link], measured: float = MEASURED_LINK) -> Slowdown:
        """Returns the slowdown of a job that spans nodes with ``links``; ``measured``: bytes/s of the measured links."""
        times = (link.crowd * measured / (link.bytes_per_s or measured) for link in links)
        longest = max(times, default=1.0)
        return NONE if longest == 1.0 else Slowdown(sync=longest)


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

    def around(self, job: str) -> list[tuple[str, int]]:
        """The job's nodes, with how many distributed jobs are on each; none if it is not distributed."""
        return [(name, len(self._on[name])) for name in self._nodes.get(job, ())]
