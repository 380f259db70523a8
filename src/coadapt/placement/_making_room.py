"""Making room: small jobs move out of a node into gaps elsewhere, so that another finds its GPUs in one place.

A node is cleared by the moves that shift the fewest GPUs, and never more of them than the job they serve gets there.
Jobs move straight into a gap where they can; where no such moves are enough, a gap may first be made for a job that
moves, by moving smaller ones. Who may not be preempted, or has several roles or nodes, stays where it is.

On nodes of four with jobs of 1 and 2 GPUs that all may move, four free GPUs can be brought together wherever they are.
The hardest case needs the second step: four nodes, each with a job of 2, a job of 1 and one free GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from math import inf
from typing import NamedTuple

import msgspec

from coadapt.model import Placement, Resources
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.placement.aware import LinkedRoom

#: At most so many jobs make room on a node, of so many that are looked at, on at most so many nodes.
_MOST_MOVES, _MOST_JOBS, _MOST_NODES = 4, 6, 64


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
    """Knows also who could move out of a node, and who has. ``network=False``: all links are alike and never crowded."""

    def __init__(self, snapshot: Snapshot, changing: frozenset[str], *, network: bool) -> None:
        super().__init__(snapshot)
        #: Jobs that were not asked and make room, with their new places.
        self.moved: dict[str, Placement] = {}
        self.moves: list[Move] = []
        self._changing, self._network = changing, network
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
        self._first_of_kind = frozenset(kinds.values())
        self.types = tuple(self._by_type)
        #: All there are, the fastest first.
        self.link_speeds = sorted(speeds, reverse=True)

    def nodes_of(self, gpu_type: str) -> Sequence[str]:
        """Nodes with GPUs of a type, in cluster order."""
        return self._by_type.get(gpu_type, ())

    def crowded(self, node: str, job: str) -> bool:
        return self._network and super().crowded(node, job)

    def link(self, node: str) -> float:
        return super().link(node) if self._network else inf

    def sizes(self, nodes: Sequence[str], demand: Resources, most: int) -> list[int]:
        """Replicas, up to ``most``, that nodes take when empty: each number once, the largest first, without 0."""
        views = self.snapshot.nodes
        found = {views[node].node.takes(demand, most) for node in nodes if node in self._first_of_kind}
        return sorted(found - {0}, reverse=True)

    def movable(self, node: str, *, again: bool) -> list[JobView]:
        """Jobs of this node alone that may leave it, smallest first; ``again``: also those that have moved already."""
        if self._movable is None:
            self._movable = {}
            for job in self.snapshot.placed.values():
                if job.id not in self._changing and _may_move(job):
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


class Need(NamedTuple):
    """Replicas that want to be on one of ``nodes``, all of one GPU type or for a job that may mix them."""

    demand: Resources
    replicas: int
    nodes: Sequence[str]
    #: Whether its job spans nodes: then a fast link is worth more to it than to others, else less.
    spans: bool

    @property
    def gpus(self) -> int:
        """On the one node."""
        return self.replicas * self.demand.gpus


def make_room(room: TidyRoom, need: Need, taken: Collection[str]) -> str | None:
    """The node that is cheapest to clear, cleared; None if there is none. Nodes in ``taken`` are left alone."""
    return _cleared(room, need, taken, cascade=False) or _cleared(room, need, taken, cascade=True)


def _cleared(room: TidyRoom, need: Need, taken: Collection[str], *, cascade: bool) -> str | None:
    nodes = [n for n in need.nodes if n not in taken]
    if sum(room.free[n] for n in nodes) < need.gpus:
        return None
    sign, views = -1 if need.spans else 1, room.snapshot.nodes
    nodes = [n for n in nodes if views[n].node.takes(need.demand, need.replicas) == need.replicas]
    nodes.sort(key=lambda n: (-room.free[n], sign * room.link(n), room.order[n]))
    best: tuple[int, int, int] | None = None
    plan: tuple[str, list[Move]] | None = None
    for node in nodes[:_MOST_NODES]:
        if best is not None and best[0] <= need.gpus - room.free[node]:
            break  # the others have to clear more
        moves = _plan(room, node, need, taken, cascade=cascade)
        if moves is not None:
            key = (sum(move.gpus for move in moves), len(moves), room.order[node])
            if best is None or key < best:
                best, plan = key, (node, moves)
    if plan is None:
        return None
    for move in plan[1]:
        room.move(move.job, move.to)
    return plan[0]


def _plan(
    room: TidyRoom, node: str, need: Need, taken: Collection[str], *, cascade: bool
) -> list[Move] | None:
    """Moves that leave enough free on the node, and shift no more GPUs than are needed there."""
    mark, elsewhere = len(room.moves), {*taken, node}
    for some in _choices(room.movable(node, again=cascade)[:_MOST_JOBS], need.gpus - room.free[node]):
        left = all(_moved_out(room, job, elsewhere, cascade=cascade) for job in some)
        enough = left and room.fits(node, need.demand, need.replicas)
        moves = room.undo(mark)
        if enough and sum(move.gpus for move in moves) <= need.gpus:
            return moves
    return None


def _choices(jobs: Sequence[JobView], missing: int) -> Iterator[tuple[JobView, ...]]:
    """Who could leave so that at least so many GPUs come free: the fewest GPUs first; of them the largest leaves first."""
    choices = [
        some
        for count in range(1, min(len(jobs), _MOST_MOVES) + 1)
        for some in combinations(jobs, count)
        if sum(job.target_gpus for job in some) >= missing
    ]
    choices.sort(key=lambda some: (sum(job.target_gpus for job in some), len(some)))
    return (tuple(sorted(some, key=lambda job: -job.target_gpus)) for some in choices)


def _moved_out(room: TidyRoom, job: JobView, elsewhere: Collection[str], *, cascade: bool) -> bool:
    """Moves the job into the tightest gap on none of the nodes ``elsewhere``; False if there is none."""
    slot = job.target.slots[0]
    demand = job.spec.worker.demand
    nodes = room.nodes_of(slot.gpu_type)
    gaps = [n for n in nodes if room.free[n] and n not in elsewhere and room.fits(n, demand, slot.replicas)]
    to = min(gaps, key=lambda n: (room.free[n], room.link(n), room.order[n]), default=None)
    if to is None and cascade:
        to = _cleared(room, Need(demand, slot.replicas, nodes, False), elsewhere, cascade=False)
    if to is None:
        return False
    room.move(job, to)
    return True
