"""Placement that keeps jobs whole, minds the network, and lets small jobs make room.

1. a job that fits one node: the node it has, if it fits there; else the one it fits most tightly, among these the one
   with the slowest link, for it needs none;
2. a larger one: as many whole nodes as it needs, and one more for a remainder. A ring is as fast as its slowest link: of
   all groups of nodes that are free, one whose slowest link is the fastest, and of that the nodes it has, then the
   tightest, then those with the slowest link that will do. A remainder avoids nodes with another distributed job;
3. where there is no such place, small jobs make room (``_making_room``), if what moves is no more than what gains by it;
4. else in pieces, as ``AwarePlacer``: a crowded job beats a waiting one.

Where nodes differ in size, "whole" means each of their sizes in turn, the largest first. Roles after the first go
beside it where they can. With ``bandwidth=False`` all links count as alike and nothing as crowded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

from coadapt.model import Allocation, Placement, Resources, Share, Slot
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.placement._making_room import Need, make_room
from coadapt.placement._tidy_room import TidyRoom
from coadapt.placement.aware import AwarePlacer
from coadapt.placement.packed import PackedPlacer, Room, replicas_that_fit


class _Wish(NamedTuple):
    """One share of a job that is to be placed."""

    job: JobView
    share: Share
    demand: Resources
    #: Nodes of the job's roles that are placed already.
    beside: Collection[str]
    #: Replicas of this role by node, as of now.
    mine: Mapping[str, int]


class TidyPlacer(AwarePlacer):
    """The placer of the product's own policy."""

    def __init__(self, *, bandwidth: bool = True) -> None:
        self.bandwidth = bandwidth

    def place(
        self, snapshot: Snapshot, allocations: Mapping[str, Allocation], fixed: Collection[str] = ()
    ) -> dict[str, Placement]:
        """See ``Placer``; jobs that make room are among the answers."""
        room = TidyRoom(snapshot, frozenset([*allocations, *fixed]), network=self.bandwidth)
        placed = self.place_in(room, allocations)
        return {**placed, **room.moved}

    def find(self, room: Room, job: JobView, allocation: Allocation) -> Placement | None:
        """See ``PackedPlacer.find``; whoever made room in vain goes back."""
        assert isinstance(room, TidyRoom)
        mark, taken = len(room.moves), Placement()
        for share in allocation.shares:
            slots = self._share(room, job, share, {slot.node for slot in taken.slots})
            room.give_back(taken, job)
            if slots is None:
                room.undo(mark)
                return None
            taken = Placement(slots=(*taken.slots, *slots))
            room.take(taken, job)
        room.give_back(taken, job)
        return taken

    def _share(
        self, room: TidyRoom, job: JobView, share: Share, beside: Collection[str]
    ) -> list[Slot] | None:
        mine = {s.node: s.replicas for s in job.target.slots if s.role == share.role}
        wish = _Wish(job, share, job.spec.role(share.role).demand, beside, mine)
        counts = _whole(room, wish) if wish.demand.gpus else _alongside(room, wish)
        return self._find_share(room, job, share) if counts is None else self.slots(room, share, counts)

    def spread(self, room: Room, job: JobView, share: Share, capacity: dict[str, int]) -> dict[str, int]:
        """See ``PackedPlacer.spread``."""
        if self.bandwidth:
            return super().spread(room, job, share, capacity)
        return PackedPlacer.spread(self, room, job, share, capacity)


def _whole(room: TidyRoom, wish: _Wish) -> dict[str, int] | None:
    """Replicas per node: all on one, or on whole nodes, as few as can be; None if there is no such place."""
    ways = sorted(_ways(room, wish), key=lambda way: way.nodes_taken)
    for _, same in groupby(ways, key=lambda way: way.nodes_taken):
        alike = list(same)
        node = _at_once(room, wish, alike[0])
        if node is not None:
            return {node: wish.share.count}
        capacity = replicas_that_fit(room, wish.job, wish.share)
        for tried in (_as_it_is, _with_moves):
            for way in alike:
                counts = tried(room, wish, way, capacity)
                if counts is not None:
                    return counts
    return None


def _at_once(room: TidyRoom, wish: _Wish, way: _Way) -> str | None:
    """The one node of a job that needs nothing but GPUs, without looking at all of them: nearly every job is such a one."""
    simple = way.nodes_taken == 1 and wish.demand.only_gpus() and not wish.beside
    if not simple or len(way.gpu_types) > 1:
        return None
    views, gpus = room.snapshot.nodes, way.each * wish.demand.gpus
    mine = {n: room.free[n] for n in wish.mine if n in views and views[n].node.gpu_type in way.gpu_types}
    kept = _best(room, wish, way, gpus, mine)
    return kept[0] if kept else room.tightest(way.gpu_types[0], gpus)


class _Way(NamedTuple):
    """So many nodes with GPUs of these types with ``each`` replicas, and one with the rest if there is any."""

    gpu_types: Sequence[str]
    whole: int
    each: int
    rest: int

    @property
    def nodes_taken(self) -> int:
        return self.whole + bool(self.rest)


def _ways(room: TidyRoom, wish: _Wish) -> Iterator[_Way]:
    """All replicas on one node if any is so large; else, and where that fails, on whole nodes of each size there is."""
    spec, asked = wish.job.spec, wish.share.gpu_type
    allowed = [asked] if asked else [t for t in room.types if not spec.gpu_types or t in spec.gpu_types]
    # a job uses one type at a time, unless it may mix them
    for gpu_types in [allowed] if spec.mixed else [[each] for each in allowed]:
        for size in room.sizes(gpu_types, wish.demand, wish.share.count):
            whole, rest = divmod(wish.share.count, size)
            yield _Way(gpu_types, whole, size, rest)


def _as_it_is(room: TidyRoom, wish: _Wish, way: _Way, capacity: Mapping[str, int]) -> dict[str, int] | None:
    """Free nodes; for a job that spans several, of the group whose slowest link is the fastest."""
    free = {n: capacity[n] for n in room.nodes_of(*way.gpu_types) if n in capacity}
    for slowest in room.link_speeds if way.nodes_taken > 1 else (-inf,):
        group = {n: c for n, c in free.items() if room.link(n) >= slowest}
        counts = dict.fromkeys(_best(room, wish, way, way.each, group)[: way.whole], way.each)
        if len(counts) < way.whole:
            continue
        if way.rest:
            others = {n: c for n, c in group.items() if n not in counts}
            counts |= dict.fromkeys(_best(room, wish, way, way.rest, others)[:1], way.rest)
        if len(counts) == way.nodes_taken:
            return counts
    return None


def _with_moves(room: TidyRoom, wish: _Wish, way: _Way, capacity: Mapping[str, int]) -> dict[str, int] | None:
    """Free nodes as far as there are any, and others cleared."""
    mark, counts = len(room.moves), dict[str, int]()
    nodes = room.nodes_of(*way.gpu_types)
    for number, each in ((way.whole, way.each), (int(way.rest > 0), way.rest)):
        free = {n: capacity[n] for n in nodes if n in capacity and n not in counts}
        chosen = _best(room, wish, way, each, free)[:number]
        counts |= dict.fromkeys(chosen, each)
        for _ in range(number - len(chosen)):
            need = Need(wish.demand, each, nodes, way.nodes_taken > 1)
            node = make_room(room, need, counts)
            if node is None:
                room.undo(mark)
                return None
            counts[node] = each
        if len(room.moves) > mark:
            capacity = replicas_that_fit(room, wish.job, wish.share)
    return counts


def _best(room: TidyRoom, wish: _Wish, way: _Way, each: int, capacity: Mapping[str, int]) -> list[str]:
    """The nodes that take so many replicas, best first."""
    spans = way.nodes_taken > 1
    return sorted(
        (n for n, c in capacity.items() if c >= each),
        key=lambda n: (
            spans and room.crowded(n, wish.job.id),
            n not in wish.beside,
            -wish.mine.get(n, 0),
            capacity[n],
            room.link(n),
            room.order[n],
        ),
    )


def _alongside(room: TidyRoom, wish: _Wish) -> dict[str, int] | None:
    """Replicas that take no GPUs: evenly on the nodes of the job's other roles, then where they are, then anywhere."""
    capacity, counts = replicas_that_fit(room, wish.job, wish.share), dict[str, int]()
    left = wish.share.count
    for nodes in (wish.beside, wish.mine, capacity):
        some = sorted((n for n in nodes if n in capacity), key=room.order.__getitem__)
        while left and (some := [n for n in some if counts.get(n, 0) < capacity[n]]):
            for node in some[:left]:
                counts[node] = counts.get(node, 0) + 1
            left -= len(some[:left])
    return None if left else counts
