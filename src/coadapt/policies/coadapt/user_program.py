"""Divides the GPUs between parties, then each party's GPUs between its jobs; exact on clusters that are not too large.

    maximise  sum_u V_u(k_u) - penalty x sum_u max(target_u - k_u, 0)     subject to  sum_u k_u <= capacity

V_u(k) is the best value of the jobs of party u on at most k GPUs, by the dynamic program of ``knapsack``. The penalty is larger
than all values together: a target is missed only where no division reaches all of them. Within a party another value may
decide (priorities, deadlines), which says nothing about how much the party gets.

With several GPU types, or too many GPUs for that, the knapsack is solved twice: with every party held to its target, and
then over all GPUs with what each job got there as its least.

A running job is displaced only for a gain (``with_margin``): a stop costs the time to start again, and a margin beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coadapt.policies.coadapt.knapsack import EXACT_CELLS, Answer, ByCapacity, Problem, filled, solve
from coadapt.policies.coadapt.offers import Offers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
#: Share of its worth that a running job has over one that would take its place.
MARGIN = 0.05
#: The same that the oldest job has over the youngest: it decides between equals, and nothing else.
_OLDER = 1e-6


def solve_for_parties(
    public: Problem, private: Floats, parties: Sequence[str], targets: Mapping[str, int]
) -> Answer:
    """Returns the option of each job.

    Args:
        public: the knapsack over all jobs, with the values that count between parties.
        private: value[j, o] that counts within a party; -inf where ``public`` has it.
        parties: the party of each job.
        targets: GPUs that each party must have, as far as possible.
    """
    rows = _rows(parties)
    capacity = sum(public.capacity)
    cells = (capacity + 1) * (public.value.size + (capacity + 1) * len(rows))
    if len(public.capacity) == 1 and cells <= EXACT_CELLS:
        given, choice, price = _divided(public, rows, targets)
    else:
        given, choice, price = _guaranteed(public, rows, targets)
    for name, mine in rows.items():
        # most users have no priorities and no deadlines: what decided between them decides among their jobs
        if not np.array_equal(private[mine], public.value[mine]):
            one = Problem(private[mine], public.kind, public.size, given[name])
            choice[mine] = solve(one).choice
    return Answer(filled(public, choice), price)


def _rows(parties: Sequence[str]) -> dict[str, Ints]:
    found: dict[str, list[int]] = {}
    for row, name in enumerate(parties):
        found.setdefault(name, []).append(row)
    return {name: np.array(found[name]) for name in sorted(found)}


#: GPUs of each party by type, the option of each job by what counts between parties, and prices.
_Division = tuple[dict[str, tuple[int, ...]], Ints, tuple[float, ...]]


def _divided(public: Problem, rows: Mapping[str, Ints], targets: Mapping[str, int]) -> _Division:
    """Divides the GPUs by dynamic programming over parties."""
    count = public.capacity[0] + 1
    finite = np.where(np.isfinite(public.value), np.abs(public.value), 0.0)
    penalty = float(finite.max(axis=1, initial=0.0).sum()) + 1.0
    amounts = np.arange(count)
    left = amounts[:, None] - amounts[None, :]
    best, picked, inside = np.zeros(count), dict[str, Ints](), dict[str, ByCapacity]()
    for name, mine in rows.items():
        inside[name] = ByCapacity(public._replace(value=public.value[mine]))
        worth = inside[name].value - penalty * np.maximum(targets.get(name, 0) - amounts, 0)
        total = np.where(left >= 0, best[np.maximum(left, 0)] + worth[None, :], -np.inf)
        picked[name] = total.argmax(axis=1)
        best = total.max(axis=1)
    price = float(best[-1] - best[-2]) if count > 1 else 0.0
    at, given = count - 1, dict[str, tuple[int, ...]]()
    choice = np.zeros(len(public.value), dtype=np.int_)
    for name in reversed(list(rows)):
        mine_gpus = int(picked[name][at])
        given[name] = (mine_gpus,)
        choice[rows[name]] = inside[name].choice(mine_gpus)
        at -= mine_gpus
    return given, choice, (min(price, penalty),)


def _guaranteed(public: Problem, rows: Mapping[str, Ints], targets: Mapping[str, int]) -> _Division:
    """Divides the GPUs of each type: first what everybody must have, then the rest on top of it."""
    least = np.zeros(len(public.value), dtype=np.int_)
    for name, mine in rows.items():
        # types count alike here; which of them it is to be is decided for all parties together
        one = Problem(public.value[mine], np.zeros_like(public.kind), public.size, (targets.get(name, 0),))
        least[mine] = public.size[solve(one).choice]
    if len(public.capacity) > 1 or least.sum() > sum(public.capacity):
        limited = np.where(public.size <= least[:, None], public.value, -np.inf)
        least = public.size[solve(public._replace(value=limited)).choice]
    finite = np.where(np.isfinite(public.value), np.abs(public.value), 0.0)
    value = np.where(public.size >= least[:, None], public.value, -np.inf)
    value[:, 0] = np.where(least > 0, -float(finite.max(axis=1, initial=0.0).sum()) - 1.0, 0.0)
    answer = solve(public._replace(value=value))
    given = {name: _by_type(public, answer.choice[mine]) for name, mine in rows.items()}
    return given, answer.choice.copy(), answer.price


def _by_type(public: Problem, choice: Ints) -> tuple[int, ...]:
    used = np.bincount(public.kind[choice], weights=public.size[choice], minlength=len(public.capacity))
    return tuple(int(each) for each in used)


def with_margin(found: Offers, value: Floats, cost_s: Floats, horizon_s: float) -> Floats:
    """Returns ``value`` with what a stop costs each running job added to all options but none.

    Args:
        found: the options of this decision.
        value: value[j, o] of the knapsack.
        cost_s: seconds that a change of each job takes.
        horizon_s: longest time over which a change is expected to last.
    """
    rows = np.arange(len(found.jobs))
    here = np.where(found.current > 0, value[rows, np.maximum(found.current, 0)], 0.0)
    here = np.where(np.isfinite(here), here, 0.0)
    stop = here * (MARGIN + cost_s / (horizon_s + cost_s))
    age = np.argsort(np.argsort([job.order for job in found.jobs], kind="stable"), kind="stable")
    older = 1 + _OLDER * (1 - age / max(len(rows), 1))
    kept = np.where(np.isfinite(value), value * older[:, None] + stop[:, None], -np.inf)
    kept[:, 0] = 0.0
    return np.asarray(kept)
