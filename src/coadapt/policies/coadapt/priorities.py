"""Weights, quotas and usage of users and teams; precedence of jobs that waited too long and of deadlines.

**Weights.** The weight of a job is 2^priority x the weight of its user x that of its team, divided by 1 + the excess
of its user: how far the user's recent usage (GPU-seconds, halved every ``half_life_s``) is above the mean of all
active users. Usage counts only where weights are given; without them all users count the same.

**Precedence.** Jobs that have waited too long, and deadlines that can still be met, get a prize larger than the sum
of all other values, so that the knapsack gives it up only for another such prize.

- A job that waited too long keeps its prize to its end: were it stopped again soon after its start, it would only
  wait on. The
  prize is proportional to the GPUs of the job's least size, or many small jobs would always outweigh a large one, and
  grows with the time by which the job is beyond its bound.
- The prize of a deadline is on the options that meet it. If none does because the job has not been measured on enough
  GPUs, it is on the fastest option that the job may have.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from coadapt.model.snapshot import JobView
from coadapt.policies.coadapt.knapsack import Problem, solve
from coadapt.policies.coadapt.offers import Offers, work_done
from coadapt.policies.coadapt.reasons import deadline_note
from coadapt.policies.coadapt.worth import fair_speedup

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
#: Key of the policy's memory: usage by user as of a moment.
USAGE = "usage"
#: Priorities beyond count as this: one step is a factor of two, and numbers have 53 of them.
MOST_PRIORITY = 20


def job_weights(
    jobs: Sequence[JobView],
    weights: Mapping[str, float],
    usage: Mapping[str, float],
    *,
    priorities: bool = True,
) -> Floats:
    """Returns one weight per job from its priority, the ``weights`` of users and teams, and recent ``usage`` by user.

    Without ``priorities`` all jobs of a user count the same: that is what decides between users.
    """
    weight = priority_factors(jobs) if priorities else np.ones(len(jobs))
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


def priority_factors(jobs: Sequence[JobView]) -> Floats:
    """Returns 2^priority of each job."""
    return np.array([2.0 ** max(min(job.spec.priority, MOST_PRIORITY), -MOST_PRIORITY) for job in jobs])


def granted_factors(jobs: Sequence[JobView], granted: Mapping[str, int]) -> Floats:
    """Returns 2^priority of each job as far as it counts against jobs of other users.

    Args:
        jobs: the jobs of this decision.
        granted: priority that an administrator granted to users and teams.
    """
    found = []
    for job in jobs:
        most = max(granted.get(job.spec.user, 0), granted.get(job.spec.team, 0) if job.spec.team else 0)
        most = min(most, MOST_PRIORITY)
        found.append(2.0 ** max(min(job.spec.priority, most), -most))
    return np.array(found)


def aged_usage(
    kept: Mapping[str, float] | None,
    jobs: Sequence[JobView],
    since: float | None,
    now: float,
    half_life_s: float,
) -> dict[str, float]:
    """Returns the GPU-seconds used by each user: the usage kept before, decayed, plus what the jobs held since then.

    Args:
        kept: usage by user as of the last decision; None: none recorded.
        jobs: jobs whose GPUs are counted.
        since: time of the last decision; None: there was none.
        now: time of this decision.
        half_life_s: seconds after which usage counts half.
    """
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
    """Removes the options that would lead a user or team beyond its quota of GPUs.

    For each group the knapsack is first solved with the quota as its capacity, less the GPUs of its jobs in
    ``staying``. The size each job gets there is the largest it may have in the returned problem.

    Args:
        problem: the knapsack over all jobs.
        jobs: the jobs of its rows.
        quotas: most GPUs by user or team.
        staying: jobs that keep what they have, whatever is decided.
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


def put_first(
    offers: Offers,
    value: Floats,
    after_s: Floats,
    now: float,
    *,
    patience: float,
    least_wait_s: float,
    reserved: Collection[int] = (),
) -> dict[int, str]:
    """Adds the prizes of overdue jobs and of deadlines to ``value``, in place.

    Returns notes for the reasons of the jobs concerned, by row.

    Args:
        offers: the options of this decision.
        value: value[j, o] of the knapsack; changed.
        after_s: seconds to the end of job j with option o.
        now: time of the decision.
        patience: a job waits at most so many times its run time on its fair share.
        least_wait_s: lower bound of that wait, in seconds.
        reserved: rows of jobs for which GPUs are reserved: they count as overdue.
    """
    at_stake = np.where(np.isfinite(value), np.abs(value), 0.0).max(initial=0.0)
    prize = float(at_stake) * (len(offers.jobs) + 1) + 1.0
    notes: dict[int, str] = {}
    runs = offers.goodput > 0
    bound_s = _bounds_s(offers, now, patience, least_wait_s)
    least = np.where(runs, offers.size, np.iinfo(np.int_).max).min(axis=1)
    for row, job in enumerate(offers.jobs):
        waited_s = job.waited_s(now)
        if (waited_s > bound_s[row] or row in reserved) and runs[row].any():
            # a placed job is not preempted for another overdue one, or both would be restarted again and again
            beyond = 1.0 if job.target else max(1 - float(bound_s[row]) / max(waited_s, 1e-9), 0.0)
            value[row, runs[row]] += 2 * prize * least[row] * (1 + beyond)
            notes[row] = "it has waited as long as any job may"
        if job.spec.deadline_s is None or not runs[row].any():
            continue
        left_s = job.submitted_at + job.spec.deadline_s - now
        meets = runs[row] & (after_s[row] <= left_s)
        if not meets.any() and _best_s(offers, row) <= left_s:
            meets = after_s[row] == after_s[row].min()
        if meets.any():
            # earlier jobs first where not all can be met
            value[row, meets] += prize * (1 + 1 / (2 + row))
        elif not offers.unknown[row]:
            notes[row] = deadline_note(float(after_s[row].min()) - left_s)
    return notes


def _bounds_s(offers: Offers, now: float, patience: float, least_wait_s: float) -> Floats:
    """Seconds that each job may wait in all: so many times its whole run on its fair share, and no less than the least.

    A job whose end is not known may wait as if its run took the least.
    """
    done_s = np.array([work_done(job, now) for job in offers.jobs]) / offers.least
    run_s = (np.where(offers.unknown, 0.0, done_s) + offers.left_s) / fair_speedup(offers)
    run_s = np.where(np.isfinite(run_s), run_s, least_wait_s)
    return np.asarray(np.maximum(patience * run_s, least_wait_s))


def _best_s(offers: Offers, row: int) -> float:
    """Seconds to the job's end on the best it may ever have here, changes aside."""
    best = float(offers.expected[row].max())
    return float(offers.left_s[row] * offers.least[row]) / best if best > 0 else math.inf
