"""The genetic search of PolluxSched over allocations, with the selection of NSGA-II.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI 2021),
as in the authors' released code. A member of the population is a matrix x[j, n], replicas of job j on
node n. With K_j = sum_n x[j, n] replicas on N_j = #{n: x[j, n] > 0} nodes, both maximised:

    fitness  F(x) = (mean_j (s_j + 1e-3)^p)^(1/p),  s_j = speedup_j(N_j, K_j) * (restart_j if row j changed)
    utility  U(x) = sum_j (speedup_j / scale_j / K_j) * (GPUs of job j / GPUs of the nodes in use)

p = -1 is the published exponent; p = 0 is the geometric mean, of max(s_j, 1e-3). NSGA-II keeps 100 members; each
generation crosses and mutates them into 100 new ones. The answer is the fittest member: utility only keeps the
population diverse. The front goes into the first population of the next round.

**Selection** is that of Deb, Pratap, Agarwal, Meyarivan, "A fast and elitist multiobjective genetic algorithm:
NSGA-II" (2002). Both objectives are negated and minimised. Member a *dominates* b when it is nowhere worse and
somewhere better; front 0 holds the members that no other dominates, front k those that only members of earlier fronts
dominate. Crowding is half the sum, over the objectives, of the distance between a member's two neighbours in its
front relative to the front's extent: large where the front is thin.

With two objectives a front sorted by the first is sorted backwards by the second. So one sweep ranks n
members in O(n log n), where the general method compares all pairs, and one pass yields the crowding of all
fronts at once. Conventions are those of pymoo 0.4.2, on which the published Pollux figures rest: members
with equal objectives share a front but only the first of them counts for crowding, the others get 0; the
ends of a front get ``END``, and a front of one or two members infinity.

Arrays are job x node x member, members last, because then every sum over jobs or nodes adds contiguous
runs of members; operations on few rows or columns (overfull nodes, jobs above their limit) gather these first.

Where we deviate, and why:
- Filling a generation with children not yet present takes at most ``ATTEMPTS`` matings, not 101: on two nodes
  and three jobs the released code spends 40 s on children it has seen. In return a mating makes some more
  children than are missing. A generation in which all attempts bring no new child ends the search.
- The released repair, when a second distributed job touches a node, also evicts from that node every job
  ordered later, distributed or not. ``published_repair`` keeps that, for the published figures need it.
- ``patience`` ends a search that has stopped improving. It counts generations, never seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.errors import InvariantError

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]

CROSSOVER = 0.9  #: chance that two parents exchange jobs
RESET = 0.1  #: chance that a job returns to what it runs on now
PRUNE = 0.1  #: chance that a job loses nodes, and of each of its nodes to be lost
EPSILON = 1e-3  #: added to every speedup, so that a job without replicas does not decide alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """One round: J jobs in order of precedence (least attained service first) on N nodes."""

    #: (J, nodes + 1, replicas + 1): speedup over the fair share, times `scale`; 0 at 0 replicas.
    speedup: Floats
    current: Ints  #: (J, N) replicas now running
    restart_factor: Floats  #: (J,) multiplies the speedup of a job whose row is not the current one
    max_replicas: Ints  #: (J,)
    min_replicas: Ints  #: (J,) with fewer a job gets none
    gpus_per_replica: Ints  #: (J,) at least 1
    capacity: Ints  #: (N,) GPUs these jobs may use
    scale: Floats | None = None  #: (J,) dominant share * nodes; by default from GPUs and capacity
    avoid_interference: bool = True  #: at most one job that spans nodes on each node
    published_repair: bool = True  #: see the module
    max_nodes_per_job: int = 16

    def __post_init__(self) -> None:
        jobs, nodes = self.current.shape
        for name in ("restart_factor", "max_replicas", "min_replicas", "gpus_per_replica"):
            if getattr(self, name).shape != (jobs,):
                raise InvariantError(
                    f"{name} has shape {getattr(self, name).shape}; {jobs} jobs need ({jobs},)"
                )
        if self.capacity.shape != (nodes,):
            raise InvariantError(f"capacity has shape {self.capacity.shape}; {nodes} nodes need ({nodes},)")
        needed = (jobs, min(nodes, self.max_nodes_per_job) + 1, int(self.max_replicas.max(initial=0)) + 1)
        if self.speedup.ndim != 3 or any(
            has < need for has, need in zip(self.speedup.shape, needed, strict=True)
        ):
            raise InvariantError(f"speedup has shape {self.speedup.shape}; the limits need at least {needed}")


def _where(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of what is true; several times faster than `np.nonzero` on two dimensions."""
    return np.divmod(np.flatnonzero(mask), max(mask.shape[1], 1))


class Space:
    """A problem with what its operators need at hand. They take and give job x node x member arrays."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        jobs, nodes = problem.current.shape
        # Sums over jobs before repair reach jobs * GPUs of a node: the smallest integers that hold them.
        largest = 3 * (jobs + nodes) * int(problem.capacity.max() + problem.gpus_per_replica.max())
        self.dtype = np.dtype(np.int16 if largest < 2**15 else np.int32)
        self.cell = np.dtype(np.uint8 if problem.capacity.max() < 2**8 else self.dtype)
        self.counter = np.dtype(np.uint8 if max(jobs, nodes) < 2**8 else np.uint32)
        self.gpus = problem.gpus_per_replica.astype(self.dtype)
        self.single_gpu = bool((self.gpus == 1).all())
        self.capacity = problem.capacity.astype(self.dtype)
        bound = 2 ** (8 * self.dtype.itemsize - 1) - 1
        self.limit = np.minimum(problem.max_replicas, bound).astype(self.dtype)[:, None]
        self.minimum = np.minimum(problem.min_replicas, bound).astype(self.dtype)[:, None]
        self.most = self.capacity // self.gpus[:, None]  # replicas of a job that an empty node holds
        self.current = problem.current.astype(self.dtype)
        scale = problem.scale
        if scale is None:
            scale = problem.gpus_per_replica * nodes / max(int(problem.capacity.sum()), 1)
        self.weight = (problem.gpus_per_replica / scale)[:, None]
        self.table = np.ascontiguousarray(problem.speedup, dtype=np.float64).reshape(-1)
        self.offset = np.arange(jobs)[:, None] * (problem.speedup.shape[1] * problem.speedup.shape[2])

    def members_last(self, members: Ints) -> Ints:
        """Member x job x node, as populations are kept, to what the operators take."""
        return np.ascontiguousarray(members.transpose(1, 2, 0), dtype=self.dtype)

    def cross(self, members: Ints, parents: Ints, rng: np.random.Generator) -> Ints:
        """Two children per pair of parents, which exchange their jobs before a random one.

        The reset of jobs to their current row, the first mutation, is the same gathering of rows.
        """
        jobs = members.shape[1]
        first, second = parents[0::2], parents[1::2]
        points = rng.integers(jobs, size=len(first))
        points[rng.random(len(first), dtype=np.float32) >= CROSSOVER] = 0
        rows = np.arange(jobs)[:, None]
        swap = rows < points
        source = np.concatenate((np.where(swap, second, first), np.where(swap, first, second)), axis=1)
        source[rng.random(source.shape, dtype=np.float32) < RESET] = len(members)
        pool = np.concatenate((members, np.minimum(self.current, self.most)[None].astype(self.cell)))
        chosen = np.take(pool.reshape(-1, pool.shape[2]), source * jobs + rows, axis=0)
        return np.ascontiguousarray(chosen.transpose(0, 2, 1), dtype=self.dtype)

    def mutate(self, x: Ints, rng: np.random.Generator) -> Ints:
        """Prunes nodes from some jobs, then lets jobs grow on nodes with room. Changes `x`."""
        jobs, nodes, members = x.shape
        job, member = _where(rng.random((jobs, members), dtype=np.float32) < PRUNE)
        row, node = _where(rng.random((len(job), nodes), dtype=np.float32) < PRUNE)
        x[job[row], node, member[row]] = 0

        columns = x.reshape(jobs, nodes * members)
        room = (self.capacity[:, None] - self._gpus_used(x)).reshape(-1)
        where = np.flatnonzero(room >= self.gpus.min())
        cells, fits = columns[:, where], self.gpus[:, None] <= room[where]
        taken = fits & (cells > 0)
        # A cell grows for being one of the jobs that fit, or one of those among them already there.
        newcomer = 1 / np.maximum(self._count(fits, axis=0), np.float32(1))
        resident = 1 / np.maximum(self._count(taken, axis=0), np.float32(1))
        chance = np.where(taken, newcomer + resident - newcomer * resident, newcomer)
        grows = fits & (rng.random(cells.shape, dtype=np.float32) < chance)
        job, place = _where(grows)
        low, place = cells[job, place], where[place]
        high = self.most[job, place // members]
        columns[job, place] = low + (rng.random(len(job)) * (high - low + 1)).astype(self.dtype)
        return x

    def repair(self, x: Ints, rng: np.random.Generator) -> Ints:
        """Makes every member feasible; jobs earlier in order keep theirs. Changes `x`."""
        if self.problem.avoid_interference:
            self._separate_distributed(x)
        self._cap_replicas(x, rng)
        self._cap_nodes(x)
        few = x.sum(axis=1, dtype=self.dtype) < self.minimum
        if few.any():
            job, member = _where(few)
            x[job, :, member] = 0
        return x

    def _separate_distributed(self, x: Ints) -> None:
        spread = x > 0
        spread &= (self._count(spread, axis=1) > 1)[:, None]
        so_far = spread.astype(self.counter)
        for before, here in pairwise(so_far):  # an accumulation; numpy's is slow along this axis
            here += before
        evicted = so_far > 1
        if not self.problem.published_repair:
            evicted &= spread
        np.multiply(x, ~evicted, out=x)

    def _cap_replicas(self, x: Ints, rng: np.random.Generator) -> None:
        """Takes nodes of a job in random order until its limit of replicas or of nodes is reached."""
        most_nodes = self.problem.max_nodes_per_job
        over = x.sum(axis=1, dtype=self.dtype) > self.limit
        if most_nodes < x.shape[1]:
            over |= self._count(x > 0, axis=1) > most_nodes
        job, member = _where(over)
        rows = x[job, :, member]
        # Two sorts of packed integers (random bits | node | replicas) are four times faster than an argsort
        # and its inverse. The bits of a positive float order like the float.
        packed = rng.random(rows.shape, dtype=np.float32).view(np.uint32).astype(np.uint64) << 32
        packed |= np.arange(x.shape[1], dtype=np.uint64) << 16 | rows.astype(np.uint64)
        packed.sort(axis=1)
        total = np.minimum(np.cumsum(packed & 0xFFFF, axis=1, dtype=self.dtype), self.limit[job])
        total[:, 1:] -= total[:, :-1]
        if most_nodes < x.shape[1]:
            total[np.cumsum(total > 0, axis=1) > most_nodes] = 0
        ordered = (packed & 0xFFFF0000).astype(np.uint32) | total.astype(np.uint32)
        ordered.sort(axis=1)
        x[job, :, member] = ordered & 0xFFFF

    def _cap_nodes(self, x: Ints) -> None:
        room = np.repeat(self.capacity[:, None], x.shape[2], axis=1)
        for gpus, row in zip(self.gpus, x, strict=True):
            # A replica that fits only in part takes that part from later jobs, as in the released code.
            given = row if gpus == 1 else row * gpus
            np.minimum(given, room, out=given)
            room -= given
            if gpus > 1:
                np.floor_divide(given, gpus, out=row)

    def evaluate(self, x: Ints, p: float) -> Floats:
        """Returns an array (members, 2): minus fitness, minus utility."""
        problem = self.problem
        occupied = x > 0
        nodes, replicas = self._count(occupied, axis=1), x.sum(axis=1, dtype=self.dtype)
        speedup = self.table[self.offset + nodes * np.int64(problem.speedup.shape[2]) + replicas]
        moved = (x != self.current[:, :, None]).any(axis=1)
        value = np.where(moved, speedup * problem.restart_factor[:, None], speedup)
        if p == 0:
            fitness = np.exp(np.log(np.maximum(value, EPSILON)).mean(axis=0))
        else:
            fitness = ((value + EPSILON) ** p).mean(axis=0) ** (1.0 / p)
        in_use = (occupied.any(axis=0) * problem.capacity[:, None]).sum(axis=0)
        utility = (speedup * self.weight).sum(axis=0) / np.maximum(in_use, 1)
        return np.stack((-fitness, -utility), axis=1)

    def starves(self, member: Ints) -> bool:
        """Whether a job has no replicas that one would help, and a GPU is free or can be taken for it."""
        replicas = member.sum(axis=1)
        helped = (self.minimum[:, 0] <= 1) & (self.limit[:, 0] > 0) & (self.problem.restart_factor > 0)
        spare = self.capacity.sum() - (np.minimum(replicas, 1) * self.gpus).sum()
        return bool((helped & (replicas == 0) & (self.gpus <= spare)).any())

    def _gpus_used(self, x: Ints) -> Ints:
        """(N, members) GPUs asked of each node."""
        demand = x if self.single_gpu else x * self.gpus[:, None, None]
        used: Ints = demand.sum(axis=0, dtype=self.dtype)
        return used

    def _count(self, mask: NDArray[np.bool_], axis: int) -> Ints:
        counts: Ints = np.add.reduce(mask.astype(self.counter), axis=axis, dtype=self.counter)
        return counts


#: Crowding of the two ends of a front: above all others, below that of a front of two.
END = 1e14


def rank_fronts(objectives: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the front number of each of n members, from their objectives (n, 2)."""
    order = np.lexsort((objectives[:, 1], objectives[:, 0]))
    ranks = []
    # Lowest second objective of each front so far. Members come by rising first objective, so a front
    # dominates the next one exactly if that value is not above its own; the values never fall with k.
    lowest: list[float] = []
    rank, previous = 0, None
    for point in objectives[order].tolist():
        if point != previous:
            rank = bisect_right(lowest, point[1])
            if rank == len(lowest):
                lowest.append(point[1])
            else:
                lowest[rank] = point[1]
            previous = point
        ranks.append(rank)
    result = np.empty(len(order), dtype=np.int64)
    result[order] = ranks
    return result


def crowding_distances(objectives: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the crowding of each member within its front."""
    order = np.lexsort((objectives[:, 1], objectives[:, 0], ranks))
    points, fronts = objectives[order], ranks[order]
    starts = np.empty(len(order), dtype=np.bool_)
    starts[0] = True
    np.not_equal(fronts[1:], fronts[:-1], out=starts[1:])
    distinct = starts.copy()
    distinct[1:] |= (points[1:] != points[:-1]).any(axis=1)

    unique, first = points[distinct], np.flatnonzero(starts[distinct])
    last = np.append(first[1:], len(unique)) - 1
    extent = np.repeat(np.abs(unique[last] - unique[first]), last - first + 1, axis=0)
    gap = np.zeros_like(unique)
    gap[1:-1] = np.abs(unique[2:] - unique[:-2])
    spread = np.divide(gap, extent, out=gap, where=extent > 0).sum(axis=1) / 2
    spread[first] = spread[last] = END
    spread[first[first == last]] = 0.0  # all members of that front are equal: none is worth more

    crowding = np.zeros(len(order))
    crowding[order[distinct]] = spread
    crowding[np.bincount(ranks)[ranks] <= 2] = np.inf
    return crowding


def survivors(
    ranks: NDArray[np.int64], crowding: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns up to ``count`` members: whole fronts by ``ranks``, of the last one those with the largest ``crowding``.

    ``rng`` breaks ties.
    """
    if len(ranks) <= count:
        return np.arange(len(ranks))
    return np.lexsort((rng.random(len(ranks)), -crowding, ranks))[:count]


def tournament(
    objectives: NDArray[np.float64], crowding: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns ``count`` winners of duels between two members: by dominance of ``objectives``, then by ``crowding``, then
    by ``rng``.

    Every member enters equally often: the pairs are cut from whole permutations.
    """
    size = len(objectives)
    rounds = [rng.permutation(size) for _ in range(-(-2 * count // size))]
    left, right = np.concatenate(rounds)[: 2 * count].reshape(count, 2).T
    (a0, a1), (b0, b1) = objectives[left].T, objectives[right].T
    no_worse, no_better = (a0 <= b0) & (a1 <= b1), (a0 >= b0) & (a1 >= b1)
    undecided = no_worse == no_better  # equal, or each better at something
    roomy, tight = crowding[left] > crowding[right], crowding[left] < crowding[right]
    chance = rng.random(count, dtype=np.float32) < 0.5
    return np.where(np.where(undecided, roomy | (chance & ~tight), no_worse), left, right)


ATTEMPTS = 4  #: matings per generation to find children that are not yet present
PATIENCE = 20  #: a good value of `patience`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """The result of a search."""

    best: NDArray[np.int64]  #: (J, N) the fittest member
    front: NDArray[np.int64]  #: (K, J, N) the members that no other dominates
    fitness: float  #: F of the best
    utility: float  #: U of the best
    generations_run: int  #: the initial one included
    evaluations: int


def carry_over(
    front: Ints,
    old_jobs: Sequence[Hashable],
    jobs: Sequence[Hashable],
    old_nodes: Sequence[Hashable],
    nodes: Sequence[Hashable],
) -> NDArray[np.int64]:
    """Returns a front as the first population of the next round; new jobs and nodes are empty.

    Args:
        front: (K, ``old_jobs``, ``old_nodes``) members of the last round.
        old_jobs: keys of its rows.
        jobs: keys of the rows now; jobs that left are dropped.
        old_nodes: keys of its columns.
        nodes: keys of the columns now; nodes that left are dropped.
    """
    row, column = {key: i for i, key in enumerate(old_jobs)}, {key: i for i, key in enumerate(old_nodes)}
    padded = np.zeros((len(front), len(old_jobs) + 1, len(old_nodes) + 1), dtype=np.int64)
    padded[:, :-1, :-1] = front
    rows = [row.get(key, len(old_jobs)) for key in jobs]
    columns = [column.get(key, len(old_nodes)) for key in nodes]
    return padded[:, rows][:, :, columns]


def search(
    problem: Problem,
    population: Ints | None,
    rng: np.random.Generator,
    *,
    pop_size: int = 100,
    generations: int = 100,
    p: float = -1.0,
    patience: int | None = None,
    tolerance: float = 1e-3,
) -> Result:
    """Returns the best allocation found and the front it belongs to.

    With ``patience`` the search ends once the best fitness has not grown by more than the share ``tolerance`` for
    that many generations in which no job was left without replicas: finding room for the last job in a full cluster
    takes long and gains more than anything else. With ``PATIENCE`` the run takes a quarter to a third of the 100
    generations and reaches nearly the same fitness (``benchmarks.simulator`` prints both).

    Args:
        problem: jobs, nodes and speedups of this round.
        population: (K, J, N) members to start from; None: the current allocation.
        rng: random generator of the decision.
        pop_size: members kept from one generation to the next.
        generations: most generations, the first one included.
        p: exponent of the power mean.
        patience: generations without improvement that end the search; None: never.
        tolerance: share by which the best fitness must grow to count as improved.
    """
    if problem.current.size == 0:
        empty = np.zeros((1, *problem.current.shape), dtype=np.int64)
        return Result(best=empty[0], front=empty, fitness=0.0, utility=0.0, generations_run=0, evaluations=0)
    generations = max(generations, 1)
    space = Space(problem)
    start = problem.current[None] if population is None else population
    first = space.repair(space.members_last(np.minimum(start, space.most)), rng)
    members, keys = _unseen(first.astype(space.cell), set())
    objectives = space.evaluate(space.members_last(members), p)
    evaluations, mark, since, fresh = len(members), 0.0, 0, 1.0

    for generation in range(1, generations + 1):
        ranks = rank_fronts(objectives)
        crowding = crowding_distances(objectives, ranks)
        kept = survivors(ranks, crowding, pop_size, rng)
        members, objectives, ranks, crowding = members[kept], objectives[kept], ranks[kept], crowding[kept]
        keys = [keys[i] for i in kept.tolist()]

        best = int(objectives[:, 0].argmin())
        improved = generation == 1 or objectives[best, 0] < mark * (1 + tolerance)
        mark = objectives[best, 0] if improved else mark
        since = 0 if improved or space.starves(members[best]) else since + 1
        if generation == generations or since == patience:
            break
        parents = _Parents(members, objectives, crowding, set(keys))
        children, child_keys, fresh = _breed(space, parents, pop_size, fresh, rng)
        if not child_keys:
            break
        members, keys = np.concatenate((members, children)), keys + child_keys
        objectives = np.concatenate((objectives, space.evaluate(space.members_last(children), p)))
        evaluations += len(children)

    front, values = members[ranks == 0].astype(np.int64), objectives[ranks == 0]
    chosen = int(values[:, 0].argmin())
    fitness, utility = (-values[chosen]).tolist()
    return Result(
        best=front[chosen],
        front=front,
        fitness=fitness,
        utility=utility,
        generations_run=generation,
        evaluations=evaluations,
    )


class _Parents(NamedTuple):
    members: Ints
    objectives: Floats
    crowding: Floats
    seen: set[bytes]


def _breed(
    space: Space, parents: _Parents, count: int, fresh: float, rng: np.random.Generator
) -> tuple[Ints, list[bytes], float]:
    """`count` children unlike each other and all parents, or as many as `ATTEMPTS` matings yield.

    Since part of the children will turn out to be known, a mating makes more than are missing: as many as
    the share that was `fresh` in the last generation calls for, at most twice. Gives the new share as well.
    """
    seen, batches, keys, made = parents.seen.copy(), [], list[bytes](), 0
    for _ in range(ATTEMPTS):
        missing = count - len(keys)
        pairs = int(missing / max(fresh, 0.5) * 0.52) + 2
        couples = tournament(parents.objectives, parents.crowding, 2 * pairs, rng)
        x = space.repair(space.mutate(space.cross(parents.members, couples, rng), rng), rng)
        batch, new = _unseen(x.astype(space.cell), seen)
        batches.append(batch)
        keys += new
        made += 2 * pairs
        if len(keys) >= count:
            break
    children = batches[0] if len(batches) == 1 else np.concatenate(batches)
    return children[:count], keys[:count], len(keys) / made


def _unseen(x: Ints, seen: set[bytes]) -> tuple[Ints, list[bytes]]:
    """The members of `x` not in `seen`, to which they are added; members first, with their keys."""
    candidates = np.ascontiguousarray(x.transpose(2, 0, 1))
    size = candidates[0].nbytes
    data, chosen, keys = candidates.tobytes(), [], []
    for i in range(len(candidates)):
        key = data[i * size : (i + 1) * size]
        if key not in seen:
            seen.add(key)
            keys.append(key)
            chosen.append(i)
    return candidates[chosen], keys
