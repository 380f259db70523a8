"""What ``TidyPlacer`` keeps track of while it places a proposal: gaps, links, who could move and who has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import msgspec

from coadapt.model import Placement, Resources
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.placement.aware import LinkedRoom


class Move(NamedTuple):
    """One job that was not asked goes to another node; ``again``: it had moved before in the same proposal."""

    job: JobView
    before: Placement
    to: str
    again: bool

    @property
    def gpus(self) -> int:
        """What it costs: a job that moves twice is started once."""
        return 0 if self.again else self.job.target_gpus


class TidyRoom(LinkedRoom):
    """Knows also who could move out of a node (none of ``staying``), and who has.

    ``network=False``: all links are alike and never crowded.
    """

    def __init__(self, snapshot: Snapshot, staying: frozenset[str], *, network: bool) -> None:
        super().__init__(snapshot)
        #: Jobs that were not asked and make room, with their new places.
        self.moved: dict[str, Placement] = {}
        self.moves: list[Move] = []
        self._staying, self._network = staying, network
        self._movable: dict[str, dict[str, JobView]] | None = None
        self._by_type: dict[str, list[str]] = {}
        kinds: dict[tuple[object, ...], str] = {}
        speeds: set[float] = set()
        for name, view in snapshot.nodes.items():
            node = view.node
            self._by_type.setdefault(node.gpu_type, []).append(name)
            extras = tuple(sorted(node.extras.items()))
            kinds.setdefault((node.gpu_type, node.gpus, node.cpus, node.memory_bytes, extras), name)
            speeds.add(self.link(name))
        self._kinds: dict[str, list[str]] = {}
        for name in kinds.values():
            self._kinds.setdefault(snapshot.nodes[name].node.gpu_type, []).append(name)
        self.types = tuple(self._by_type)
        #: All there are, the fastest first.
        self.link_speeds = sorted(speeds, reverse=True)
        # nodes by type and free GPUs, the slowest link first; what is no longer so is passed over when it turns up
        self._gaps: dict[str, dict[int, list[tuple[float, int, str]]]] = {t: {} for t in self.types}
        for name in snapshot.nodes:
            self._note_gap(name)

    def _note_gap(self, name: str) -> None:
        gaps = self._gaps[self.snapshot.nodes[name].node.gpu_type]
        heappush(gaps.setdefault(self.free[name], []), (self.link(name), self.order[name], name))

    def _add(self, placement: Placement, job: JobView, sign: int) -> None:
        super()._add(placement, job, sign)
        for slot in placement.slots:
            if slot.node in self.free:
                self._note_gap(slot.node)

    def tightest(self, gpu_type: str, gpus: int, without: Collection[str] = ()) -> str | None:
        """The node with the fewest free GPUs that are enough, among these the one with the slowest link."""
        gaps = self._gaps.get(gpu_type, {})
        for free in sorted(gaps):
            if free < gpus:
                continue
            heap, passed = gaps[free], []
            while heap and (self.free[heap[0][2]] != free or heap[0][2] in without):
                entry = heappop(heap)
                if self.free[entry[2]] == free:
                    passed.append(entry)
            found = heap[0][2] if heap else None
            for entry in passed:
                heappush(heap, entry)
            if found is not None:
                return found
        return None

    def nodes_of(self, *gpu_types: str) -> Sequence[str]:
        """Nodes with GPUs of these types, in cluster order."""
        if len(gpu_types) == 1:
            return self._by_type.get(gpu_types[0], ())
        some = (name for gpu_type in gpu_types for name in self._by_type.get(gpu_type, ()))
        return sorted(some, key=self.order.__getitem__)

    def crowded(self, node: str, job: str) -> bool:
        return self._network and super().crowded(node, job)

    def link(self, node: str) -> float:
        return super().link(node) if self._network else inf

    def sizes(self, gpu_types: Sequence[str], demand: Resources, most: int) -> list[int]:
        """Replicas, up to ``most``, that nodes take when empty: each number once, the largest first, without 0."""
        nodes = (self.snapshot.nodes[name].node for t in gpu_types for name in self._kinds.get(t, ()))
        return sorted({node.takes(demand, most) for node in nodes} - {0}, reverse=True)

    def movable(self, node: str, *, again: bool) -> list[JobView]:
        """Jobs of this node alone that may leave it, smallest first; ``again``: also those that have moved already."""
        if self._movable is None:
            self._movable = {}
            for job in self.snapshot.placed.values():
                if job.id not in self._staying and _may_move(job):
                    self._movable.setdefault(job.target.slots[0].node, {})[job.id] = job
        jobs = [job for name, job in self._movable.get(node, {}).items() if again or name not in self.moved]
        return sorted(jobs, key=lambda job: (job.target_gpus, job.order))

    def move(self, job: JobView, to: str) -> None:
        """A job that was not asked makes room."""
        before = self.moved.get(job.id, job.target)
        self.moves.append(Move(job, before, to, job.id in self.moved))
        self._put(job, before, Placement(slots=(msgspec.structs.replace(before.slots[0], node=to),)))

    def undo(self, mark: int) -> list[Move]:
        """Whoever moved since there were ``mark`` moves goes back; returns these moves."""
        undone = self.moves[mark:]
        for move in reversed(undone):
            self._put(move.job, self.moved[move.job.id], move.before)
            if not move.again:
                del self.moved[move.job.id]
        del self.moves[mark:]
        return undone

    def _put(self, job: JobView, before: Placement, after: Placement) -> None:
        self.give_back(before, job)
        self.take(after, job)
        self.moved[job.id] = after
        if self._movable is not None:
            del self._movable[before.slots[0].node][job.id]
            self._movable.setdefault(after.slots[0].node, {})[job.id] = job


def _may_move(job: JobView) -> bool:
    free = job.spec.preemptible or job.phase not in HOLDING
    return free and len(job.spec.roles) == 1 and len(job.target.slots) == 1
