"""The genetic search of PolluxSched over allocations: how many replicas of each job on each node.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI 2021),
as in the authors' released code. A member of the population is a matrix x[j, n], replicas of job j on
node n. With K_j = sum_n x[j, n] replicas on N_j = #{n: x[j, n] > 0} nodes, both maximised:

    fitness  F(x) = (mean_j (s_j + 1e-3)^p)^(1/p),  s_j = speedup_j(N_j, K_j) * (restart_j if row j changed)
    utility  U(x) = sum_j (speedup_j / scale_j / K_j) * (GPUs of job j / GPUs of the nodes in use)

p = -1 is the published exponent; p = 0 is the geometric mean, of max(s_j, 1e-3). NSGA-II (see `_dominance`)
keeps 100 members; a generation crosses and mutates them into 100 new ones. The answer is the fittest member:
utility only keeps the population diverse. The front goes into the next round's first population.

Where we deviate, and why:
- Filling a generation with children not yet present takes at most `ATTEMPTS` matings, not 101: on two nodes
  and three jobs the released code spends 40 s on children it has seen. In return a mating makes some more
  children than are missing. A generation in which all attempts bring no new child ends the search.
- The released repair, when a second distributed job touches a node, also evicts from that node every job
  ordered later, distributed or not. `published_repair` keeps that, for the published figures need it.
- `patience` ends a search that has stopped improving. It counts generations, never seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.policies._allocation_space import Floats, Ints, Problem, Space
from coadapt.policies._dominance import crowding_distances, rank_fronts, survivors, tournament

ATTEMPTS = 4  #: matings per generation to find children that are not yet present
PATIENCE = 20  #: a good value of `patience`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """What a search found."""

    best: NDArray[np.int64]  #: (J, N) the fittest member
    front: NDArray[np.int64]  #: (K, J, N) the members nobody dominates
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
    """A front as next round's first population: what left is dropped, new jobs and nodes are empty."""
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
    """The best allocation found, starting from `population` (K, J, N) or else from the current one.

    With `patience`, ends once the best fitness has not grown by more than the share `tolerance` for that
    many generations in which no job was left without replicas: to find room for the last job in a full
    cluster takes long and is worth more than all else. It is the same run, only shorter: with `PATIENCE` it
    takes a quarter to a third of the 100 generations for nearly the same fitness (``benchmarks.simulator`` prints both).
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
