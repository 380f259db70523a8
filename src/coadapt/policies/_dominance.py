"""Who survives and who mates in a search with two objectives (NSGA-II).

Deb, Pratap, Agarwal, Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II" (2002).
Both objectives are minimised. Member a *dominates* b when it is nowhere worse and somewhere better;
front 0 is what nobody dominates, front k what only members of earlier fronts dominate. Crowding is half
the sum, over the objectives, of the distance between a member's two neighbours in its front relative
to the front's extent: large where the front is thin.

With two objectives a front sorted by the first is sorted backwards by the second. So one sweep ranks n
members in O(n log n), where the general method compares all pairs, and one pass yields the crowding of all
fronts at once. Conventions are those of pymoo 0.4.2, which the published Pollux figures rest on: members
with equal objectives share a front but only the first of them counts for crowding, the others get 0; the
ends of a front get `END`, and a front of one or two members infinity.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

#: Crowding of the two ends of a front: above all others, below that of a front of two.
END = 1e14


def rank_fronts(objectives: NDArray[np.float64]) -> NDArray[np.int64]:
    """The front of each of n members, from their objectives (n, 2)."""
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
    """The crowding of each member within its front."""
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
    """Up to `count` members: whole fronts in order, of the last one the least crowded, ties at random."""
    if len(ranks) <= count:
        return np.arange(len(ranks))
    return np.lexsort((rng.random(len(ranks)), -crowding, ranks))[:count]


def tournament(
    objectives: NDArray[np.float64], crowding: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """`count` winners of duels between two members: by dominance, then crowding, then chance.

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
