"""Placement that keeps jobs whole, minds the network, and moves small jobs to make room.

1. A job that fits one node goes to the node it has, if it fits there; else to the one it fits most tightly, among
   these
   the one with the slowest link, for it needs none.
2. A larger job gets as many whole nodes as it needs, and one more for a remainder. A ring is as fast as its slowest
   link: of
   all groups of free nodes, one whose slowest link is the fastest is taken, and of that the nodes it has, then the
   tightest, then those with the slowest link that will do. A remainder avoids nodes with another distributed job.
3. Where there is no such place, small jobs make room, if the GPUs that move are no more than the GPUs that gain by it.
4. Else the job is placed in pieces, as by ``AwarePlacer``: a crowded job beats a waiting one.

Where nodes differ in size, "whole" means each of their sizes in turn, the largest first. Roles after the first go
beside it where they can. With ``bandwidth=False`` all links count as equal and no node as crowded.

**Making room.** Small jobs move out of a node into gaps elsewhere, so that another job finds its GPUs in one place. A
node is cleared by the moves that shift the fewest GPUs, and never more of them than the job they serve gets there.
Jobs move straight into a gap where they can; where such moves are not enough, a gap may first be made for a job that
moves, by moving smaller ones. Jobs that may not be preempted, or have several roles or nodes, stay where they are.

On nodes of four with jobs of 1 and 2 GPUs that all may move, four free GPUs can be brought together wherever they are.
The hardest case needs the second step: four nodes, each with a job of 2, a job of 1 and one free GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import combinations, groupby
from math import inf
from typing import NamedTuple

import msgspec

from coadapt.model import Allocation, Placement, Resources, Share, Slot
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.placement.aware import AwarePlacer, LinkedRoom
from coadapt.placement.packed import PackedPlacer, Room, replicas_that_fit


class Move(NamedTuple):
    """One job that was not asked goes to another node; ``again``: it had moved before in the same proposal."""

    job: JobView
    before: Placement
    to: str
    again: bool

    @property
    def gpus(self) -> int:
        """GPUs that the move costs; a job that moves twice is restarted once."""
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
        """Undoes all moves after the first ``mark``; returns them."""
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


#: Limits of making room: jobs moved off a node, jobs considered for that, and nodes considered.
_MOST_MOVES, _MOST_JOBS, _MOST_NODES = 4, 6, 64


class Need(NamedTuple):
    """Replicas that need one of ``nodes``, all of one GPU type or for a job that may mix types."""

    demand: Resources
    replicas: int
    nodes: Sequence[str]
    #: Whether its job spans nodes: then a fast link is worth more to it than to others, else less.
    spans: bool

    @property
    def gpus(self) -> int:
        """GPUs needed on the one node."""
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
    """Sets of jobs whose move frees enough GPUs: the fewest GPUs first; within a set the largest job moves first."""
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


class _Wish(NamedTuple):
    """One share of a job to place."""

    job: JobView
    share: Share
    demand: Resources
    #: Nodes of the job's roles that are placed already.
    beside: Collection[str]
    #: Replicas of this role by node, as of now.
    mine: Mapping[str, int]


class TidyPlacer(AwarePlacer):
    """The default placer of the policy ``coadapt``."""

    name = "tidy"
    order = 20

    def __init__(self, *, bandwidth: bool = True) -> None:
        self.bandwidth = bandwidth

    def place(
        self, snapshot: Snapshot, allocations: Mapping[str, Allocation], fixed: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Places the allocations of a proposal (``Placer.place``); the result also holds jobs that were moved to make
        room.
        """
        room = TidyRoom(snapshot, frozenset([*allocations, *fixed]), network=self.bandwidth)
        placed = self.place_in(room, allocations)
        return {**placed, **room.moved}

    def find(self, room: Room, job: JobView, allocation: Allocation) -> Placement | None:
        """Finds slots for one job, moving small jobs if needed; moves that did not help are undone."""
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
        """Spreads ``share`` of ``job`` over ``capacity`` in ``room`` as ``AwarePlacer``, or as ``PackedPlacer`` without
        ``bandwidth``.
        """
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
    """Free nodes first, then nodes that are cleared."""
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
    """The nodes that can take the replicas, best first."""
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
