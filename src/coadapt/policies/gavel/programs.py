"""Gavel's programs: which fraction of time each job, or pair of jobs, should have on each GPU type.

Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads" (OSDI 2020). With x[r, t]
the time fraction of row r on type t (``problem.Problem``), T_j(x) the steps per second of job j, s_j its GPUs and w_j its
weight, every program has  x >= 0,  sum of x over the rows of a job <= 1,  sum_r s_r x[r, t] <= GPUs of type t, and

    max_min_fairness       max min_j  s_j T_j(x) / (w_j Tprop_j)         Tprop: rate with an equal part of all GPUs
    finish_time_fairness   min max_j  (age_j + left_j / T_j(x)) / (C_j + left_j / I_j)
    min_total_duration     min H      T_j(x) >= left_j / H
    max_sum_throughput     max sum_j  T_j(x)        / price of the type; with deadlines T_j(x) >= left_j / due_j
    water_filling          max_min_fairness again and again, for the jobs that can still gain

I_j is the rate of j alone on its part of the cluster (``Problem.even``) and C_j the time that the steps done so far would
have taken there. Of many solutions each program returns the one in the middle (``linear_program``).

Where we deviate from the released code:
- finish_time_fairness and min_total_duration are found by rising or falling bounds of linear programs, not by a conic
  solver; the optimum is the same.
- ``tolerance`` of min_total_duration is 5% as released; every smaller one works as well.
- max_min_fairness divides by w_j as published; the released code does so, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.policies.gavel.linear_program import FloatArray, maximise
from coadapt.policies.gavel.problem import Problem

#: Rounds of finish_time_fairness and of water filling, far above what any problem needs.
_MOST_ROUNDS = 100
#: Rate of a job that has nothing, in place of 0.
_NOTHING = 1e-12


def max_min_fairness(problem: Problem) -> FloatArray:
    """The least served job gets the most: its rate over that with an equal part of all GPUs, per GPU and weight."""
    return _shaped(problem, _max_min(problem, _served(problem)))


def finish_time_fairness(problem: Problem) -> FloatArray:
    """The job whose time to the end grows most over that on its own part of the cluster suffers least (Themis' rho).

    A bound r on all rho asks for the rates left / (r (C + left / I) - age). The largest common factor by which these can be
    exceeded gives other fractions, whose largest rho is the next bound, until it falls no more.
    """
    own = np.maximum((problem.rates * problem.even()).sum(axis=1), _NOTHING)
    past = np.array([job.age_s for job in problem.jobs])
    alone = np.array([job.isolated_s for job in problem.jobs]) + problem.steps_left / own
    x = problem.even().ravel()
    x = np.concatenate([x, np.zeros(problem.speeds.shape[1] - len(x))])
    rho = _largest_rho(problem, x, past, alone)
    for _ in range(_MOST_ROUNDS):
        needed = problem.steps_left / np.maximum(rho * alone - past, _NOTHING)
        found = _max_min(problem, problem.speeds / needed[:, None], central=False)
        after = _largest_rho(problem, found, past, alone)
        if after > rho * (1 - 1e-9):
            break
        rho = after
    # at the optimum: the rates asked for, and how they fall with the bound, so that the middle is that of rho itself
    room_s = np.maximum(rho * alone - past, _NOTHING)
    needed, slope = problem.steps_left / room_s, alone / room_s
    base, room = _base(problem)
    rows = np.hstack([-problem.speeds / needed[:, None], -slope[:, None]])
    matrix = np.vstack([np.hstack([base, np.zeros((len(base), 1))]), rows])
    gain = np.zeros(matrix.shape[1])
    gain[-1] = -1.0
    solution = maximise(gain, matrix, np.concatenate([room, -(1.0 + slope * rho)]), central=True)
    assert solution is not None  # the last one satisfies the constraints
    return _shaped(problem, solution.x[:-1])


def rho_of(problem: Problem, x: FloatArray) -> float:
    """The objective of ``finish_time_fairness``."""
    own = np.maximum((problem.rates * problem.even()).sum(axis=1), _NOTHING)
    past = np.array([job.age_s for job in problem.jobs])
    alone = np.array([job.isolated_s for job in problem.jobs]) + problem.steps_left / own
    return _largest_rho(problem, x.ravel(), past, alone)


def min_total_duration(problem: Problem, *, tolerance: float = 0.05) -> FloatArray:
    """All jobs that are here end by a time H that is as early as possible, to within ``tolerance``."""
    base, room = _base(problem)
    least, most, step = 100.0, 1e6, 1e6
    matrix = np.vstack([base, -problem.speeds])
    nothing = np.zeros(base.shape[1])
    found: float | None = None
    while found is None:
        if step > 1e15:
            return _shaped(problem, nothing)  # a job that can run nowhere never ends
        while least * (1 + tolerance) < most:
            horizon = (least + most) / 2
            bound = np.concatenate([room, -problem.steps_left / horizon])
            if maximise(nothing, matrix, bound) is None:
                least = horizon
            else:
                most = found = horizon
        least, most, step = step, step * 10, step * 10
    bound = np.concatenate([room, -problem.steps_left / found])
    solution = maximise(nothing, matrix, bound, central=True)
    assert solution is not None
    return _shaped(problem, solution.x)


def max_sum_throughput(
    problem: Problem, *, prices: Sequence[float] | None = None, deadlines: bool = False
) -> FloatArray:
    """The most steps per second of all jobs together, or per unit of money; deadlines first, if all can be met.

    Args:
        problem: jobs and GPUs.
        prices: price of a GPU by type; None: steps count, whatever they cost.
        deadlines: every job with a deadline gets the rate that meets it. If that cannot be, no deadline counts.
    """
    base, room = _base(problem)
    width, count = len(problem.types), len(problem.rows)
    gain = problem.speeds.sum(axis=0)
    if prices is not None:
        gain = gain / np.tile(np.asarray(prices, dtype=np.float64), count)
    if width and deadlines:
        due = [(j, job.due_s) for j, job in enumerate(problem.jobs) if job.due_s is not None]
        needed = np.array([-problem.steps_left[j] / max(due_s, _NOTHING) for j, due_s in due])
        rows = np.vstack([base, -problem.speeds[[j for j, _ in due]]])
        met = maximise(gain, rows, np.concatenate([room, needed]), central=True)
        if met is not None:
            return _shaped(problem, met.x)
    solution = maximise(gain, base, room, central=True)
    assert solution is not None
    return _shaped(problem, solution.x)


def water_filling(problem: Problem, *, entities: str = "") -> FloatArray:
    """Max-min fairness, then the same for all jobs that can still gain, until none can.

    Args:
        problem: jobs and GPUs.
        entities: how an entity's weight is divided among its jobs: "fairness" by their weights, "fifo" all of it to the
            first that can still gain; empty: there are no entities.
    """
    base, room = _base(problem)
    served = problem.speeds / problem.proportional[:, None]
    jobs = len(problem.jobs)
    open_ = np.ones(jobs, dtype=np.bool_)
    done = np.zeros(jobs)
    for _ in range(min(jobs, _MOST_ROUNDS) + 1):
        weight = _open_weights(problem, open_, entities)
        pulls = open_ & (weight > 0)
        if not pulls.any():
            break
        # (e_j - done_j) s_j / w_j >= c for the open jobs; all others keep what they have
        rise = np.where(pulls, weight / problem.gpus, 0.0)[:, None]
        matrix = np.vstack([np.hstack([base, np.zeros((len(base), 1))]), np.hstack([-served, rise])])
        gain = np.zeros(matrix.shape[1])
        gain[-1] = 1.0
        solution = maximise(gain, matrix, np.concatenate([room, -_below(done)]))
        assert solution is not None
        done = done + rise[:, 0] * solution.value
        stuck = pulls & ~_can_gain(base, room, served, done, pulls)
        if not stuck.any():
            break  # nobody is held back by the others any more
        open_ &= ~stuck
    matrix = np.vstack([base, -served])
    solution = maximise(np.zeros(base.shape[1]), matrix, np.concatenate([room, -_below(done)]), central=True)
    assert solution is not None
    return _shaped(problem, solution.x)


def objective(problem: Problem, x: FloatArray) -> float:
    """The objective of ``max_min_fairness``."""
    return float((_served(problem) @ x.ravel()).min())


def _open_weights(problem: Problem, open_: np.ndarray, entities: str) -> FloatArray:
    """Weight with which each open job takes part in the next round of water filling."""
    if not entities:
        return np.where(open_, problem.weights, 0.0)
    weight = np.zeros(len(problem.jobs))
    by_entity: dict[str, list[int]] = {}
    for j, job in enumerate(problem.jobs):
        if open_[j]:
            by_entity.setdefault(job.entity or job.id, []).append(j)
    for members in by_entity.values():
        if entities == "fifo":
            weight[members[0]] = 1.0
        else:
            total = sum(problem.jobs[j].weight for j in members)
            for j in members:
                weight[j] = problem.jobs[j].weight / total
    return weight


def _can_gain(
    base: FloatArray, room: FloatArray, served: FloatArray, done: FloatArray, pulls: np.ndarray
) -> np.ndarray:
    """Which of the pulling jobs can have more than ``done`` while no job has less, each asked alone."""
    gaining = np.zeros(len(done), dtype=np.bool_)
    matrix = np.vstack([base, -served])
    bound = np.concatenate([room, -_below(done)])
    for j in np.flatnonzero(pulls):
        if gaining[j]:
            continue
        solution = maximise(served[j], matrix, bound)
        if solution is not None:
            # whoever else has more in this solution can gain as well
            gaining |= pulls & (served @ solution.x > done * 1.0001 + 1e-9)
    return gaining


def _below(done: FloatArray) -> FloatArray:
    # what a solver found is feasible to within its tolerance only
    return done * (1 - 1e-9)


def _served(problem: Problem) -> FloatArray:
    """Served share of each job per time fraction: s T / (w Tprop)."""
    scale = problem.gpus / (problem.weights * np.maximum(problem.proportional, _NOTHING))
    return np.asarray(problem.speeds * scale[:, None])


def _base(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """The constraints that all programs share."""
    matrix = np.vstack([problem.member, problem.usage])
    return matrix, np.concatenate([np.ones(len(problem.jobs)), problem.room])


def _max_min(problem: Problem, shares: FloatArray, *, central: bool = True) -> FloatArray:
    """Time fractions that maximise the least of ``shares`` @ x."""
    base, room = _base(problem)
    matrix = np.vstack(
        [np.hstack([base, np.zeros((len(base), 1))]), np.hstack([-shares, np.ones((len(shares), 1))])]
    )
    gain = np.zeros(matrix.shape[1])
    gain[-1] = 1.0
    solution = maximise(gain, matrix, np.concatenate([room, np.zeros(len(shares))]), central=central)
    assert solution is not None  # x = 0 always satisfies the constraints
    return solution.x[:-1]


def _largest_rho(problem: Problem, x: FloatArray, past: FloatArray, alone: FloatArray) -> float:
    rates = np.maximum(problem.speeds @ x, _NOTHING)
    return float(((past + problem.steps_left / rates) / alone).max())


def _shaped(problem: Problem, x: FloatArray) -> FloatArray:
    """The fractions by row and type, within the constraints to the last digit: a solver keeps them to within its tolerance."""
    base, room = _base(problem)
    some = room > 0
    over = max(1.0, float((base[some] @ x / room[some]).max(initial=1.0)))
    return np.clip(x / over, 0.0, 1.0).reshape(len(problem.rows), len(problem.types))
