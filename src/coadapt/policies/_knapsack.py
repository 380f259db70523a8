"""Who gets which size: a multiple-choice knapsack, one option per job, sizes in GPUs within the cluster's.

    maximise  sum_j value[j, o_j]     subject to  sum_j size[o_j] <= capacity

``solve_exact`` is dynamic programming over the capacity; ``solve_priced`` bisects the price of a GPU (Lagrangian)
and gives away what is left by the best gain per GPU: for large clusters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]


def solve_exact(value: Floats, size: Ints, capacity: int) -> Ints:
    """The best option of each job. ``value[j, o]`` may be -inf; option 0 has size 0. O(jobs x options x capacity)."""
    jobs, options = value.shape
    best = np.zeros(capacity + 1)
    choice = np.zeros((jobs, capacity + 1), dtype=np.int16)
    # before[o, c]: the capacity left when option o is taken at capacity c; one cell of -inf beyond the end
    before = np.arange(capacity + 1) - size[:, None]
    before = np.where(before >= 0, before, capacity + 1)
    padded = np.append(best, -np.inf)
    column = np.arange(capacity + 1)
    for job in range(jobs):
        total = padded[before] + value[job][:, None]
        picked = total.argmax(axis=0)
        choice[job] = picked
        padded[:-1] = total[picked, column]
    left, found = capacity, np.zeros(jobs, dtype=np.int_)
    for job in range(jobs - 1, -1, -1):
        found[job] = choice[job, left]
        left -= int(size[found[job]])
    return found
