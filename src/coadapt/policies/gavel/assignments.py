"""Gavel's policies that are no programs: equal parts, first come first served, AlloX and random pairs (Gandiva).

Each returns time fractions by row of ``problem.Problem``, as the programs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import numpy as np

from coadapt.policies.gavel.linear_program import FloatArray
from coadapt.policies.gavel.problem import Problem

#: Rate of a job where it cannot run, as AlloX counts it.
_CANNOT = 1e-10


def isolated(problem: Problem) -> FloatArray:
    """An equal part of every GPU type for every job."""
    return _with_pairs(problem, problem.even())


def fifo_fastest(problem: Problem) -> FloatArray:
    """First come first served, each on the fastest type with room; the first that fits nowhere ends the walk."""
    left = list(problem.capacity)
    x = np.zeros((len(problem.rows), len(problem.types)))
    for j, job in enumerate(problem.jobs):
        fitting = [t for t, room in enumerate(left) if room >= job.gpus]
        if not fitting:
            break
        best = max(fitting, key=lambda t: job.rates[t])
        if job.rates[best] > 0:
            x[j, best] = 1.0
            left[best] -= job.gpus
    return x


def fifo_packed(problem: Problem, *, threshold: float = 1.5) -> FloatArray:
    """``fifo_fastest``; then the head of the queue joins the running job with which both lose least.

    The sum of both rates over those alone must exceed ``threshold``; the first job that finds no partner ends the walk.
    """
    x = fifo_fastest(problem)
    column = {j: int(x[j].argmax()) for j in range(len(problem.jobs)) if x[j].any()}
    rows = {row.members: r for r, row in enumerate(problem.rows) if len(row.members) == 2}
    queue = [j for j in range(len(problem.jobs)) if j not in column]
    single = dict(column)
    for j in queue:
        best, most = None, threshold
        for other, t in single.items():
            pair = (min(j, other), max(j, other))
            if pair not in rows or problem.jobs[j].gpus != problem.jobs[other].gpus:
                continue
            worth = sum(
                rates[t] / problem.jobs[each].rates[t]
                for each, rates in zip(pair, problem.rows[rows[pair]].rates, strict=True)
                if rates[t] > 0
            )
            if worth > most:
                best, most = other, worth
        if best is None:
            break
        pair, t = (min(j, best), max(j, best)), single.pop(best)
        x[best] = 0.0
        x[rows[pair], t] = 1.0
    return x


class FirstCome:
    """First come first served without knowledge of rates: running jobs keep their type.

    As released, with its slip: a job gets the last of the types with any free GPU on which it can run, whether it fits there
    now or not; the type that was drawn for it is only taken off the list when the other is full.

    Args:
        held: GPU type of each job that has one, in the order they got it.
        seed: seed of the draws; ``draws`` of them were made before.
    """

    def __init__(self, held: Mapping[str, int], generator: Random) -> None:
        self.held = dict(held)
        self._generator = generator
        self.draws = 0

    def fractions(self, problem: Problem) -> FloatArray:
        """Gives GPUs to the jobs of ``problem``; those that hold one are named in the order of their arrival."""
        jobs = {job.id: j for j, job in enumerate(problem.jobs)}
        queue = [job.id for job in problem.jobs if job.id not in self.held]
        # types in the order of the alphabet, as the released code sorts them
        names = sorted(range(len(problem.types)), key=lambda t: problem.types[t])
        left = list(problem.capacity)
        for name in list(self.held):
            t = self.held[name]
            if name in jobs:
                left[t] -= problem.jobs[jobs[name]].gpus
                continue
            del self.held[name]
            head = problem.jobs[jobs[queue[0]]] if queue else None
            if head is not None and head.gpus <= left[t] and head.rates[t] > 0:
                self.held[queue.pop(0)] = t
                left[t] -= head.gpus
        free = [t for t in names if left[t] > 0]
        while queue and free:
            job = problem.jobs[jobs[queue.pop(0)]]
            fitting = [i for i, t in enumerate(free) if left[t] >= job.gpus]
            if not fitting:
                break
            drawn = self._generator.randrange(len(fitting))
            self.draws += 1
            able = [t for t in free if job.rates[t] > 0]
            if not able:
                continue
            t = able[-1]
            self.held[job.id] = t
            left[t] -= job.gpus
            if left[t] == 0:
                free.pop(fitting[drawn])
        x = np.zeros((len(problem.rows), len(problem.types)))
        # in order of arrival, also those that will have ended next time
        self.held = dict(sorted(self.held.items(), key=lambda item: jobs[item[0]]))
        for name, t in self.held.items():
            x[jobs[name], t] = 1.0
        return x


def allox(problem: Problem, held: Mapping[str, int], *, alpha: float = 1.0) -> FloatArray:
    """AlloX (Le et al., EuroSys 2020): least average completion time of the waiting jobs, by an assignment.

    Jobs with one GPU only, without preemption: a job keeps the GPU it has. The others, oldest first, are assigned to places
    k = 1, 2, ... from the end on the free GPUs at the cost k * left / rate + age; the one furthest from the end runs.
    """
    from scipy.optimize import linear_sum_assignment

    x = np.zeros((len(problem.rows), len(problem.types)))
    left = list(problem.capacity)
    waiting = []
    for j, job in enumerate(problem.jobs):
        if job.id in held:
            x[j, held[job.id]] = 1.0
            left[held[job.id]] -= 1
        else:
            waiting.append(j)
    gpus = [t for t, room in enumerate(left) for _ in range(room)]
    waiting.sort(key=lambda j: -problem.jobs[j].age_s)
    waiting = waiting[: max(int(alpha * len(waiting)), len(gpus))]
    if not waiting or not gpus:
        return x
    rates = np.array([[problem.jobs[j].rates[t] or _CANNOT for t in gpus] for j in waiting])
    needs = np.array([problem.jobs[j].steps_left for j in waiting])[:, None] / rates
    age = np.array([problem.jobs[j].age_s for j in waiting])[:, None]
    places = np.arange(1, len(waiting) + 1)
    cost = np.concatenate([k * needs + age for k in places], axis=1)
    rows, columns = linear_sum_assignment(cost)
    first: dict[int, tuple[int, int]] = {}
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        place, gpu = divmod(column, len(gpus))
        if gpu not in first or place > first[gpu][0]:
            first[gpu] = (place, waiting[row])
    for gpu, (_, j) in first.items():
        x[j, gpus[gpu]] = 1.0
    return x


class RandomPairs:
    """Gandiva as Gavel's authors modelled it: pairs drawn at random are kept as long as they gain.

    Args:
        partners: the present partner of each job that was drawn, None for one that was left alone.
        generator: source of the draws.
    """

    def __init__(self, partners: Mapping[str, str | None], generator: Random) -> None:
        self.partners = dict(partners)
        self._generator = generator

    def fractions(self, problem: Problem) -> FloatArray:
        """Equal time for every pair and every single job."""
        jobs = {job.id: j for j, job in enumerate(problem.jobs)}
        self._drop(problem, jobs)
        rows = {row.members: r for r, row in enumerate(problem.rows)}
        if sum(job.gpus for job in problem.jobs) <= sum(problem.capacity):
            scheduled = list(range(len(problem.jobs)))
        else:
            self._draw(problem, jobs)
            together = {
                tuple(sorted((jobs[name], jobs[other]))) if other is not None else (jobs[name],)
                for name, other in self.partners.items()
            }
            scheduled = [rows[members] for members in sorted(together)]
        x = np.zeros((len(problem.rows), len(problem.types)))
        for r in scheduled:
            gpus = problem.jobs[problem.rows[r].members[0]].gpus
            x[r] = problem.room / (len(scheduled) * gpus)
        return np.asarray(x / np.maximum(x.sum(axis=1, keepdims=True), 1.0))

    def _drop(self, problem: Problem, jobs: Mapping[str, int]) -> None:
        """Separates pairs of which a member has ended or that lose; jobs left alone are drawn again."""
        rows = {row.members: row for row in problem.rows}
        for name, other in list(self.partners.items()):
            if name not in jobs or other is None or other not in jobs:
                gone = True
            else:
                pair = tuple(sorted((jobs[name], jobs[other])))
                gone = pair not in rows or gain(problem, rows[pair].members, rows[pair].rates) < 1.0
            if gone:
                self.partners.pop(name, None)
                if other is not None:
                    self.partners.pop(other, None)

    def _draw(self, problem: Problem, jobs: Mapping[str, int]) -> None:
        alone = [job.id for job in problem.jobs if job.id not in self.partners]
        for _ in range(len(alone)):
            if len(alone) < 2:
                break
            one, other = self._generator.sample(alone, 2)
            if problem.jobs[jobs[one]].gpus != problem.jobs[jobs[other]].gpus:
                continue
            alone.remove(one)
            alone.remove(other)
            self.partners[one], self.partners[other] = other, one
        for name in alone:
            self.partners[name] = None


def gain(problem: Problem, members: Sequence[int], rates: Sequence[Sequence[float]]) -> float:
    """Sum over types and members of the rate in the pair over that alone; 0 if a member cannot run."""
    total = 0.0
    for t in range(len(problem.types)):
        for j, of in zip(members, rates, strict=True):
            if of[t] <= 0:
                return 0.0
            total += of[t] / problem.jobs[j].rates[t]
    return total


def _with_pairs(problem: Problem, x: FloatArray) -> FloatArray:
    return np.concatenate([x, np.zeros((len(problem.rows) - len(x), len(problem.types)))])
