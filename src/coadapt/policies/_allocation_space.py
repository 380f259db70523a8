"""The space Pollux' genetic search moves in: a round's problem, its operators and its objectives.

Arrays are job x node x member, members last, because then every sum over jobs or nodes adds contiguous
runs of members; what concerns few rows or columns (overfull nodes, jobs above their limit) is gathered first.
The formulas, and where they deviate from the released code, are stated in ``genetic``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

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
        """(members, 2): minus fitness, minus utility."""
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
