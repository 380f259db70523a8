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
from typing import NamedTuple

from coadapt.model import Resources
from coadapt.model.snapshot import JobView
from coadapt.placement._tidy_room import Move, TidyRoom

#: At most so many jobs make room on a node, of so many that are looked at, on at most so many nodes.
_MOST_MOVES, _MOST_JOBS, _MOST_NODES = 4, 6, 64


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
    if demand.only_gpus():
        to = room.tightest(slot.gpu_type, job.target_gpus, elsewhere)
    else:
        gaps = [n for n in nodes if n not in elsewhere and room.fits(n, demand, slot.replicas)]
        to = min(gaps, key=lambda n: (room.free[n], room.link(n), room.order[n]), default=None)
    if to is None and cascade:
        to = _cleared(room, Need(demand, slot.replicas, nodes, False), elsewhere, cascade=False)
    if to is None:
        return False
    room.move(job, to)
    return True
