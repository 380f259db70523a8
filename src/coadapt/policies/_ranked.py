"""Selection of jobs that have a rank and a fixed size: walk by rank, run whatever fits, stop the rest.

The walk gives each job in turn its GPUs if enough are left, and passes over it otherwise (backfill). This
module finds the outcome of that walk without walking. With C GPUs that may be given and U(x) the GPUs of
the running jobs ranked before x, the outcome is the one set of running jobs in which

    every running job at x has   size <= C - U(x)      and every waiting one has   size > C - U(x).

U never falls along the ranks, so of the waiting jobs of one size only the first can be wrong, and of the
running ones the first beyond C. ``settle`` repairs whichever of these comes first by rank, which leaves everything
before it right, until nothing is wrong. So a decision costs in proportion to the changes it makes, not
to the jobs that wait; and since the outcome does not depend on the set it began with, a structure kept since the
last decision gives the same as one built anew.

With several GPU types each type has its own C and U; a job keeps its type while it runs, and starts on the
first type that has room. Jobs that hold GPUs and may not be preempted stand outside: their GPUs are not in C.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import accumulate
from typing import NamedTuple

from coadapt.errors import InvariantError
from coadapt.model import Node
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import gpus_needed

#: Compared element by element; ends with the job's rank by submission, so no two are equal.
Rank = tuple[float, ...]

#: Repairs per job, far above the one that each takes: more mean that ranks are not ordered.
_MOVES = 8


class Shape(NamedTuple):
    """The properties that decide whether a waiting job fits."""

    gpus: int
    per_replica: int
    types: tuple[str, ...]


class _Line:
    """The running jobs on one GPU type, by rank, and how many GPUs they and the free ones are."""

    __slots__ = ("capacity", "largest", "names", "ranks", "sizes", "used")

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.sizes: list[int] = []
        self.names: list[str] = []
        self.used: list[int] | None = None
        self.capacity = self.largest = 0

    def add(self, name: str, rank: Rank, size: int) -> None:
        at = bisect_left(self.ranks, rank)
        self.ranks.insert(at, rank)
        self.sizes.insert(at, size)
        self.names.insert(at, name)
        self.used = None

    def remove(self, rank: Rank) -> None:
        at = bisect_left(self.ranks, rank)
        del self.ranks[at], self.sizes[at], self.names[at]
        self.used = None

    def sums(self) -> list[int]:
        """GPUs of the first i + 1 jobs."""
        if self.used is None:
            self.used = list(accumulate(self.sizes))
        return self.used

    def left_before(self, rank: Rank) -> int:
        at = bisect_left(self.ranks, rank)
        return self.capacity - (self.sums()[at - 1] if at else 0)


class _Entry(NamedTuple):
    rank: Rank
    shape: Shape
    #: Where it runs; None: it waits.
    gpu_type: str | None


class Ranked:
    """Running and waiting jobs, ordered by rank."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self._lines: dict[str, _Line] = {}
        self._waiting: dict[Shape, list[tuple[Rank, str]]] = {}
        self._nodes: list[Node] = []
        self._types: list[str] = []

    def add(self, job: JobView, rank: Rank) -> None:
        """Takes in a job as it is: with a target it runs, without it waits."""
        spec = job.spec
        shape = Shape(gpus_needed(spec), spec.roles[0].demand.gpus, spec.gpu_types)
        if job.target:
            self._place(job.id, rank, shape, job.target.gpu_type, job.target_gpus)
        else:
            self._queue(job.id, rank, shape)

    def remove(self, name: str) -> None:
        """Removes a job that has ended or changes its rank."""
        rank, shape, gpu_type = self.entries.pop(name)
        if gpu_type is not None:
            self._lines[gpu_type].remove(rank)
        else:
            jobs = self._waiting[shape]
            del jobs[bisect_left(jobs, (rank, name))]
            if not jobs:
                del self._waiting[shape]

    def move(self, job: JobView, rank: Rank) -> None:
        """Changes the rank of a job."""
        self.remove(job.id)
        self.add(job, rank)

    def settle(self, snapshot: Snapshot) -> dict[str, str | None]:
        """Returns the jobs that change: the GPU type on which they start, or None for those that lose their GPUs."""
        self._measure(snapshot)
        before: dict[str, str | None] = {}
        for _ in range(_MOVES * len(self.entries) + _MOVES):
            over, start = self._first_over(), self._first_fitting()
            if over is not None and (start is None or over[0] < start[0]):
                rank, name, _ = over
                goal = None
            elif start is not None:
                rank, name, goal = start
            else:
                break
            entry = self.entries[name]
            before.setdefault(name, entry.gpu_type)
            self.remove(name)
            if goal is None:
                self._queue(name, rank, entry.shape)
            else:
                self._place(name, rank, entry.shape, goal, entry.shape.gpus)
        else:
            raise InvariantError("the order of the jobs is not total; a rank is not a number")
        now = self.entries
        return {name: now[name].gpu_type for name, old in before.items() if now[name].gpu_type != old}

    def _measure(self, snapshot: Snapshot) -> None:
        """GPUs that may be given, by type: those that are free and those of the jobs in line."""
        nodes = [view.node for view in snapshot.nodes.values()]
        if nodes != self._nodes:
            self._nodes = nodes
            self._sort_lines(nodes)
        free = dict.fromkeys(self._types, 0)
        if len(free) == 1:
            free[self._types[0]] = snapshot.free_gpus
        else:
            for view in snapshot.nodes.values():
                free[view.node.gpu_type] += view.node.gpus - view.promised
        for name, line in self._lines.items():
            line.capacity = free.get(name, 0) + (line.sums()[-1] if line.sizes else 0)

    def _sort_lines(self, nodes: list[Node]) -> None:
        """One line per type in the order of the nodes, whatever the order jobs came in."""
        self._types = list(dict.fromkeys(node.gpu_type for node in nodes))
        known = self._lines
        self._lines = {name: known.pop(name, _Line()) for name in self._types}
        self._lines |= {name: line for name, line in known.items() if line.names}
        for name, line in self._lines.items():
            line.largest = max((node.gpus for node in nodes if node.gpu_type == name), default=0)

    def _first_over(self) -> tuple[Rank, str, None] | None:
        """The first running job for which nothing is left."""
        first: tuple[Rank, str, None] | None = None
        for line in self._lines.values():
            at = bisect_right(line.sums(), line.capacity)
            if at < len(line.ranks) and (first is None or line.ranks[at] < first[0]):
                first = (line.ranks[at], line.names[at], None)
        return first

    def _first_fitting(self) -> tuple[Rank, str, str] | None:
        """The first waiting job that fits before the jobs ranked after it."""
        first: tuple[Rank, str, str] | None = None
        lines = self._lines
        for shape, jobs in self._waiting.items():
            rank, name = jobs[0]
            if first is not None and first[0] < rank:
                continue
            for gpu_type in shape.types or lines:
                line = lines.get(gpu_type)
                if line is None or line.largest < shape.per_replica or line.capacity < shape.gpus:
                    continue
                if shape.gpus <= line.left_before(rank):
                    first = (rank, name, gpu_type)
                    break
        return first

    def _place(self, name: str, rank: Rank, shape: Shape, gpu_type: str, gpus: int) -> None:
        line = self._lines.get(gpu_type)
        if line is None:
            line = self._lines[gpu_type] = _Line()
        line.add(name, rank, gpus)
        self.entries[name] = _Entry(rank, shape, gpu_type)

    def _queue(self, name: str, rank: Rank, shape: Shape) -> None:
        insort(self._waiting.setdefault(shape, []), (rank, name))
        self.entries[name] = _Entry(rank, shape, None)
