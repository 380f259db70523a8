"""Chooses a size for each job: a multiple-choice knapsack over the GPUs of each type.

    maximise  sum_j value[j, o_j]     subject to  sum of size[o_j] over jobs that chose a type  <=  capacity[type]

Option 0 is no GPUs and always allowed. ``exact`` is dynamic programming over all remaining capacities (of all types
together), for small clusters; ``priced`` is for large ones. It sets a price per GPU of each type and bisects until
demand meets capacity (a Lagrangian relaxation); where demand still exceeds capacity it reduces the jobs that lose
least, hands out the remaining GPUs by gain per GPU, and solves the jobs that were nearly undecided exactly, all
together. ``solve`` uses ``exact`` where it is cheap.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]

#: Amounts left (product over types) x jobs x options up to which the exact answer is computed.
EXACT_CELLS = 15_000_000
#: The same for the jobs that ``priced`` settles exactly at a time, and how many times it does so.
_CORE_CELLS, _CORES = 1_000_000, 3
_BISECTIONS, _SWEEPS, _STEPS = 40, 6, 60


class Problem(NamedTuple):
    """``value[j, o]``: -inf where job j may not have option o; ``kind[o]``: index of its GPU type, ``size[o]``: GPUs."""

    value: Floats
    kind: Ints
    size: Ints
    capacity: tuple[int, ...]


class Answer(NamedTuple):
    """The option chosen for each job, and the value that one more GPU of each type would add."""

    choice: Ints
    price: tuple[float, ...]


def solve(problem: Problem) -> Answer:
    """Returns the best options: by ``exact`` where that is cheap, else by ``priced``."""
    states = math.prod(c + 1 for c in problem.capacity)
    if states * problem.value.size <= EXACT_CELLS:
        return exact(problem)
    return priced(problem)


def exact(problem: Problem) -> Answer:
    """By dynamic programming: O(jobs x options x product of capacities)."""
    _, _, _, capacity = problem
    best, before, rows, strides = _tables(problem)
    states = len(best) - 1
    choice = _traced(problem, before, rows, states - 1)
    price = tuple(
        float(best[states - 1] - best[states - 1 - strides[k]]) if capacity[k] else 0.0
        for k in range(len(capacity))
    )
    return Answer(choice, price)


class ByCapacity:
    """The best answers on at most 0, 1, ... GPUs, up to the capacity of the one GPU type."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        best, self._before, self._rows, _ = _tables(problem)
        self.value: Floats = best[:-1]

    def choice(self, gpus: int) -> Ints:
        """Returns the option of each job on at most so many GPUs."""
        return _traced(self._problem._replace(capacity=(gpus,)), self._before, self._rows, gpus)


def _traced(
    problem: Problem, before: npt.NDArray[np.intp], rows: list[npt.NDArray[np.int32]], at: int
) -> Ints:
    """The option of each job, from the last to the first, where ``at`` is left."""
    choice = np.zeros(len(problem.value), dtype=np.int_)
    for job in range(len(rows) - 1, -1, -1):
        choice[job] = rows[job][at]
        at = int(before[choice[job], at])
    if at:  # worth so little beside others that it was lost in rounding, but better than GPUs that nobody has
        choice = filled(problem, choice)
    return choice


def _tables(problem: Problem) -> tuple[Floats, npt.NDArray[np.intp], list[npt.NDArray[np.int32]], Ints]:
    """The best value by what is left, what each option leaves of it, each job's option there, and strides of types."""
    value, kind, size, capacity = problem
    shape = tuple(c + 1 for c in capacity)
    amounts = np.indices(shape).reshape(len(shape), -1)
    states = amounts.shape[1]
    strides = np.array([math.prod(shape[i + 1 :]) for i in range(len(shape))])
    # before[o, s]: what is left of s when option o is taken; the cell beyond the last where it does not fit
    before = np.empty((len(size), states), dtype=np.intp)
    for option, (k, s) in enumerate(zip(kind, size, strict=True)):
        fits = amounts[k] >= s
        before[option] = np.where(fits, np.arange(states) - s * strides[k], states)
    best = np.zeros(states + 1)
    best[states] = -np.inf
    cells, rows = np.arange(states), []
    useful = _undominated(problem)
    for job, these in zip(value, useful, strict=True):
        allowed = np.flatnonzero(these)
        total = best[before[allowed]] + job[allowed, None]
        picked = total.argmax(axis=0)
        rows.append(allowed[picked].astype(np.int32))
        best[:states] = total[picked, cells]
    return best, before, rows, strides


def _undominated(problem: Problem) -> npt.NDArray[np.bool_]:
    """Options worth more than every smaller one of the same type, and nothing at all: no other can be part of an answer."""
    value, kind, size, _ = problem
    useful = np.zeros(value.shape, dtype=np.bool_)
    useful[:, 0] = True
    for k in range(len(problem.capacity)):
        columns = np.flatnonzero((kind == k) & (size > 0))
        columns = columns[np.argsort(size[columns], kind="stable")]
        worth = value[:, columns]
        smaller = np.maximum.accumulate(np.concatenate([value[:, :1], worth], axis=1), axis=1)[:, :-1]
        useful[:, columns] = worth > smaller
    return useful


def priced(problem: Problem) -> Answer:
    """By prices, one per type: about linear in jobs, options and types."""
    room = np.array(problem.capacity)
    # what can never be had must not drive prices up
    problem = problem._replace(value=np.where(problem.size > room[problem.kind], -np.inf, problem.value))
    prices = np.zeros(len(room))
    for _ in range(_SWEEPS if len(room) > 1 else 1):
        for k in range(len(room)):
            prices[k] = _bisect(problem, prices, k)
    choice = _bought(problem, prices)
    if len(room) > 1:  # prices of one type move the demand for others: one after the other is not enough
        prices = _lowered(problem, prices, _total(problem, choice))
        choice = max(choice, _bought(problem, prices), key=lambda each: _total(problem, each))
    return Answer(_settled(problem, choice, prices), tuple(prices.tolist()))


def _total(problem: Problem, choice: Ints) -> float:
    return float(problem.value[np.arange(len(choice)), choice].sum())


def _bought(problem: Problem, prices: Floats) -> Ints:
    """What jobs get at these prices, made to fit, and what is left given away."""
    choice = _demand(problem, prices)
    if (_used(problem, choice) > problem.capacity).any():
        choice = _shed(problem, choice, prices)
    return filled(problem, choice)


def _lowered(problem: Problem, prices: Floats, reached: float) -> Floats:
    """Prices nearer to the best: the least total of all gains at these prices and of what all GPUs cost.

    That total is never below what can be reached; steps against its slope are as long as they should be if the
    optimum were what was reached (Polyak, 1969).
    """
    room, best, least = np.array(problem.capacity), prices, math.inf
    for _ in range(_STEPS):
        at_price = problem.value - prices[problem.kind] * problem.size
        choice = at_price.argmax(axis=1)
        total = float(at_price.max(axis=1).sum() + prices @ room)
        if total < least:
            best, least = prices, total
        slope = _used(problem, choice) - room
        length = float(slope @ slope)
        if not length or total <= reached:
            break
        prices = np.maximum(prices + (total - reached) / length * slope, 0.0)
    return best


def _demand(problem: Problem, prices: Floats) -> Ints:
    """What each job would take at these prices."""
    return np.asarray((problem.value - prices[problem.kind] * problem.size).argmax(axis=1))


def _used(problem: Problem, choice: Ints) -> Ints:
    return np.bincount(
        problem.kind[choice], weights=problem.size[choice], minlength=len(problem.capacity)
    ).astype(np.int_)


def _bisect(problem: Problem, prices: Floats, k: int) -> float:
    """The lowest price of type ``k`` at which no more than its capacity is asked for, the others given."""
    trial = prices.copy()
    trial[k] = 0.0
    if _used(problem, _demand(problem, trial))[k] <= problem.capacity[k]:
        return 0.0
    finite = np.where(np.isfinite(problem.value), problem.value, 0.0)
    low, high = 0.0, float(finite.max() - finite.min()) + 1e-9
    for _ in range(_BISECTIONS):
        trial[k] = (low + high) / 2
        if _used(problem, _demand(problem, trial))[k] > problem.capacity[k]:
            low = trial[k]
        else:
            high = trial[k]
    return high


def _shed(problem: Problem, choice: Ints, prices: Floats) -> Ints:
    """Jobs step back from types that are asked for too much to the next best that fits, who loses least per GPU first."""
    value, kind, size, capacity = problem
    choice, left = choice.copy(), np.array(capacity) - _used(problem, choice)
    at_price = value - prices[kind] * size
    for k in range(len(capacity)):
        holders = np.flatnonzero((kind[choice] == k) & (size[choice] > 0))
        others = np.where(kind == k, -np.inf, at_price[holders])
        others[:, 0] = at_price[holders, 0]
        loss = at_price[holders, choice[holders]] - others.max(axis=1)
        for job in holders[np.argsort(loss / size[choice[holders]], kind="stable")].tolist():
            if left[k] >= 0:
                break
            left[k] += size[choice[job]]
            fits = size <= left[kind]
            fits[0] = True
            choice[job] = int(np.where(fits, at_price[job], -np.inf).argmax())
            left[kind[choice[job]]] -= size[choice[job]]
    return choice


def _settled(problem: Problem, choice: Ints, prices: Floats) -> Ints:
    """The jobs nearest to undecided at these prices share what they and nobody have, exactly; then the next ones."""
    value, kind, size, capacity = problem
    choice, rows = choice.copy(), np.arange(len(value))
    at_price = value - prices[kind] * size
    own = at_price[rows, choice]
    at_price[rows, choice] = -np.inf
    doubt = np.argsort(own - at_price.max(axis=1), kind="stable").tolist()
    for _ in range(_CORES):
        left = np.array(capacity) - _used(problem, choice)
        some: list[int] = []
        for _ in range(len(doubt)):
            wider = left + _used(problem, choice[doubt[:1]])
            if math.prod((wider + 1).tolist()) * (len(some) + 1) * len(size) > _CORE_CELLS:
                break
            some.append(doubt.pop(0))
            left = wider
        if not some:
            break
        choice[some] = exact(Problem(value[some], kind, size, tuple(left.tolist()))).choice
    return choice


def filled(problem: Problem, choice: Ints) -> Ints:
    """What is left goes to whoever gains most per GPU from it, as long as anybody gains."""
    value, kind, size, capacity = problem
    choice, left = choice.copy(), np.array(capacity) - _used(problem, choice)
    jobs = np.arange(len(value))
    # every move raises the value of one job, so there are no more moves than options
    for _ in range(value.size + 1):
        if not left.any():
            break
        # a job that stays on its type pays only for what it adds
        extra = size - np.where(kind == kind[choice][:, None], size[choice][:, None], 0)
        gain = value - value[jobs, choice][:, None]
        fits = (gain > 0) & (extra <= left[kind])
        rate = np.where(fits, gain / np.maximum(extra, 0.5), 0.0)
        best = rate.max(axis=1)
        taken = False
        for job in np.argsort(-best, kind="stable").tolist():
            if best[job] <= 0:
                break
            option = int(rate[job].argmax())
            add = int(extra[job, option])
            if add > left[kind[option]]:
                continue
            left[kind[choice[job]]] += size[choice[job]]
            left[kind[option]] -= size[option]
            choice[job], taken = option, True
        if not taken:
            break
    return choice
