"""The value of each option under an objective; all are separable over jobs, so that one knapsack solves them all.

    jct          weight x speed-up, weights by heSRPT (Berg, Vesilo, Harchol-Balter, SIGMETRICS 2020): for known sizes and
                 speed-ups k^p the mean completion time is least if the i-th of n jobs, largest first, gets the share
                 (i/n)^(1/(1-p)) - ((i-1)/n)^(1/(1-p)); the weights that lead there are its powers 1 - p
    fairness     as jct, and a prize for every job that ends in no more time than alone on its fair share (Themis, NSDI 2020)
    throughput   speed-up, summed
    mean         (speed-up over the fair share)^p / p, the power mean of Pollux
    cost         as jct, less a price for every GPU above a job's least: one is worth it while it adds half of what the
                 first brought

Speed-ups are relative to the least size on which a job can run. The cost of a change is the time lost, as a share of
the time for which the change lasts: until the job ends, but at most the horizon after which the next change is
expected.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from coadapt.policies.coadapt.offers import Offers

Floats = npt.NDArray[np.float64]
#: Value of a fair end, in speed-ups of the job with the largest weight; and the width of the smooth step at rho = 1.
FAIRNESS, _DOUBT = 1.0, 0.3
Objective = Literal["jct", "fairness", "throughput", "mean", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("jct", "fairness", "throughput", "mean", "cost")


def hesrpt_weights(left_levels_s: Floats, p: float) -> Floats:
    """Weight of each job by its place among all, averaged over what its remaining time may be.

    A wide distribution takes many places, and its weight is drawn to the middle: the hedge against being wrong.
    """
    count, levels = left_levels_s.shape
    middle = np.sort(np.where(np.isfinite(left_levels_s), left_levels_s, np.inf)[:, levels // 2])
    # how many are larger; the job itself counts among them by half a place on either side
    above = (
        count
        - (np.searchsorted(middle, left_levels_s, "left") + np.searchsorted(middle, left_levels_s, "right"))
        / 2
    )
    place = np.clip(above + 0.5, 1.0, count)
    power = 1 / (1 - p)
    share = (place / count) ** power - ((place - 1) / count) ** power
    return np.asarray((share ** (1 - p)).mean(axis=1))


def discounted(offers: Offers, cost_s: Floats, horizon_s: float, hysteresis: float) -> Floats:
    """Returns the speed-up of each option, reduced for options that change a running job.

    Args:
        offers: the options of this decision.
        cost_s: seconds that a change of each job takes.
        horizon_s: longest time over which a change is expected to last.
        hysteresis: share by which a change must gain more than it costs.
    """
    speedup = offers.goodput / offers.least[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        stretch = np.where(speedup > 0, offers.left_s[:, None] / speedup, 0.0)
    stretch = np.clip(stretch, 1.0, horizon_s)
    lost = (1 - hysteresis) * stretch / (stretch + cost_s[:, None])
    # a job that has nothing loses nothing but its own time, which it has to spend sooner or later
    changes = (np.arange(speedup.shape[1]) != offers.current[:, None]) & (offers.current != 0)[:, None]
    return speedup * np.where(changes, lost, 1.0)


def worth(
    objective: Objective,
    offers: Offers,
    speedup: Floats,
    after_s: Floats,
    age_s: Floats,
    cost_s: Floats,
    *,
    p: float,
    weights: Floats,
    on_time: float = 0.0,
) -> Floats:
    """Returns value[j, o] for the knapsack: -inf where a job may not have an option, 0 for no GPUs.

    Args:
        objective: one of ``OBJECTIVES``; see the module docstring.
        offers: the options of this decision.
        speedup: speed-up of each option after ``discounted``.
        after_s: seconds to the end of job j with option o.
        age_s: seconds since each job was submitted.
        cost_s: seconds that a change of each job takes.
        p: exponent of the assumed speed-up, or of the power mean.
        weights: weight of each job (``priorities.job_weights``).
        on_time: under jct, the prize of an end in no more time than alone on a fair share, as under fairness.
    """
    fair = fair_speedup(offers)
    if objective == "throughput":
        value = speedup * weights[:, None]
    elif objective == "mean":
        value = _power(speedup / fair[:, None], p) * weights[:, None]
    else:
        rank = hesrpt_weights(offers.left_levels_s, p)
        value = speedup * (rank * weights)[:, None]
        prize = max(FAIRNESS, on_time) if objective == "fairness" else on_time if objective == "jct" else 0.0
        if prize:
            value = value + prize * _fairness(offers, after_s, age_s, fair, cost_s) * weights[:, None]
        if objective == "cost":
            # what a job cannot do without is not priced, or a large one would never run
            least = np.where(offers.goodput > 0, offers.size, np.iinfo(np.int_).max).min(axis=1)
            value = value - 0.5 * (rank * weights)[:, None] * np.maximum(offers.size - least[:, None], 0)
    value = np.where(offers.goodput > 0, value, -np.inf)
    value[:, 0] = 0.0
    return value


def fair_speedup(offers: Offers) -> Floats:
    """Speed-up on an equal share of all GPUs, of the type where that is fastest."""
    share = max(sum(offers.capacity) / max(len(offers.jobs), 1), 1.0)
    within = (offers.size <= max(share, 1.0)) & (offers.goodput > 0)
    best = np.where(within, offers.goodput, 0.0).max(axis=1)
    return np.asarray(np.maximum(best / offers.least, 1.0))


def _power(x: Floats, p: float) -> Floats:
    """x^p / p, moved so that nothing (x = 0) is worth 0, as if it were half of the least that anybody can have."""
    nothing = float(x[x > 0].min(initial=1.0)) / 2
    logs = np.log(np.maximum(x, nothing) / nothing)
    # (x^p - nothing^p) / p without the difference of two numbers that are nearly 1 for a p near 0, where it is the logarithm
    return logs if abs(p) < 1e-9 else np.asarray(nothing**p * np.expm1(p * logs) / p)


def _fairness(offers: Offers, after_s: Floats, age_s: Floats, fair: Floats, cost_s: Floats) -> Floats:
    """How surely each option lets a job end in no more time than alone on its fair share: 0 to 1.

    rho = (age + time to its end) / time alone for all its work, as it looks now; the step at 1 is smooth over _DOUBT.
    """
    done_s = np.array([job.work or 0.0 for job in offers.jobs]) / offers.least
    alone_s = np.maximum(cost_s + (done_s + offers.left_s) / fair, 1.0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        rho = (np.maximum(age_s, 0.0)[:, None] + after_s) / alone_s[:, None]
        sure = 1 / (1 + np.exp(np.clip(np.log(rho) / _DOUBT, -50, 50)))
    return np.asarray(np.where(np.isfinite(rho), sure, 0.0))
