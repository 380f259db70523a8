"""Who is entitled to how much: priorities, weights of users and teams, quotas, and usage that is forgotten with time.

A job's weight is 2^priority x the weight of its user x that of its team, divided by 1 + its user's excess: how far the
user's recent usage (GPU-seconds, halved every ``half_life_s``) is above the mean of all active users. Only where weights
are given: without them everybody counts the same, whatever they have used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coadapt.model.snapshot import JobView
from coadapt.policies._knapsack import Problem, solve

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
#: Key of the policy's memory: usage by user as of a moment.
USAGE = "usage"
#: Priorities beyond count as this: one step is a factor of two, and numbers have 53 of them.
MOST_PRIORITY = 20


def job_weights(jobs: Sequence[JobView], weights: Mapping[str, float], usage: Mapping[str, float]) -> Floats:
    """One weight per job."""
    weight = np.array([2.0 ** max(min(job.spec.priority, MOST_PRIORITY), -MOST_PRIORITY) for job in jobs])
    if not weights:
        return weight
    for row, job in enumerate(jobs):
        weight[row] *= weights.get(job.spec.user, 1.0) * weights.get(job.spec.team, 1.0)
    entitled = {job.spec.user: weights.get(job.spec.user, 1.0) for job in jobs}
    rate = {user: usage.get(user, 0.0) / share for user, share in entitled.items()}
    mean = sum(rate.values()) / len(rate) if rate else 0.0
    if mean > 0:
        weight /= np.array([1.0 + max(rate[job.spec.user] / mean - 1.0, 0.0) for job in jobs])
    return weight


def aged_usage(
    kept: Mapping[str, float] | None,
    jobs: Sequence[JobView],
    since: float | None,
    now: float,
    half_life_s: float,
) -> dict[str, float]:
    """Usage by user at ``now``: what was kept, faded, and what the jobs have held since the last decision."""
    usage = dict(kept or {})
    if since is not None and now > since:
        fade = 0.5 ** ((now - since) / half_life_s)
        usage = {user: used * fade for user, used in usage.items() if used * fade > 1.0}
        for job in jobs:
            if job.target_gpus:
                user = job.spec.user
                usage[user] = usage.get(user, 0.0) + job.target_gpus * (now - since)
    return {user: round(usage[user], 1) for user in sorted(usage)}


def within_quotas(
    problem: Problem, jobs: Sequence[JobView], quotas: Mapping[str, int], staying: Sequence[JobView] = ()
) -> Problem:
    """The problem without options that would lead a user or team beyond its quota of GPUs.

    Each group is given its quota alone first, less what its jobs have that are ``staying`` whatever is decided; what the
    others get then is the most each may have.
    """
    if not quotas:
        return problem
    value = problem.value.copy()
    for group, quota in quotas.items():
        rows = np.array(
            [row for row, job in enumerate(jobs) if group in (job.spec.user, job.spec.team)], dtype=int
        )
        if not rows.size:
            continue
        # a quota counts GPUs of all types alike
        held = sum(job.target_gpus for job in staying if group in (job.spec.user, job.spec.team))
        one = Problem(value[rows], np.zeros_like(problem.kind), problem.size, (max(int(quota) - held, 0),))
        most = problem.size[solve(one).choice]
        value[rows] = np.where(problem.size <= most[:, None], value[rows], -np.inf)
    return problem._replace(value=value)
