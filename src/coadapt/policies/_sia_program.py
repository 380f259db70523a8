"""Sia's choice of configurations as a binary program, solved by HiGHS.

    minimise  sum cost[j, c] x[j, c]                       x binary
    s.t.      sum_c x[j, c] <= 1                           every job: one configuration, or none
              sum gpus[c] x[j, c] <= capacity              every GPU type

What gains nothing (cost >= 0) is not offered: leaving the job out is at least as good. HiGHS gives one answer for one
version and one input; its search is bounded by a count of nodes, never by time. Costs are whole numbers, by which HiGHS
prunes earlier; and the HiGHS of scipy 1.17 prints a line on standard output, whatever its options say, where
a heuristic's solution is not quite whole (ERGO-Code/HiGHS issue 2783): with costs in fractions once in a thousand programs,
with whole ones never in 6,400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Choice(NamedTuple):
    """One configuration offered to one job."""

    job: int
    gpu_type: str
    gpus: int
    cost: int


def solve(
    choices: Sequence[Choice], capacity: Mapping[str, int], *, gap: float, nodes: int
) -> list[int] | None:
    """Indices of the choices taken, in order; None if the search ended without any answer."""
    useful = [
        i for i, choice in enumerate(choices) if choice.cost < 0 and choice.gpus <= capacity[choice.gpu_type]
    ]
    if not useful:
        return []
    # imported here: it takes longer than many a command that never solves anything
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    offered = [choices[i] for i in useful]
    jobs = {job: row for row, job in enumerate(dict.fromkeys(choice.job for choice in offered))}
    types = {name: len(jobs) + row for row, name in enumerate(capacity)}
    rows = np.array([jobs[c.job] for c in offered] + [types[c.gpu_type] for c in offered])
    amounts = np.array([1.0] * len(offered) + [float(c.gpus) for c in offered])
    columns = np.tile(np.arange(len(offered)), 2)
    matrix = csr_array((amounts, (rows, columns)), shape=(len(jobs) + len(types), len(offered)))
    limits = np.array([1.0] * len(jobs) + [float(capacity[name]) for name in types])
    result = milp(
        np.array([float(c.cost) for c in offered]),
        integrality=np.ones(len(offered), dtype=np.int_),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, ub=limits),
        options={"mip_rel_gap": gap, "node_limit": nodes},
    )
    if result.x is None:
        return None
    return [i for i, share in zip(useful, result.x.tolist(), strict=True) if share > 0.5]
