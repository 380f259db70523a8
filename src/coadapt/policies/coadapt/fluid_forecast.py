"""Forecasts when jobs end, by a fluid model of the jobs that are active now.

The model shares the cluster as heSRPT would (``worth``), in fractions of GPUs, with each job at the speed of its own
curve, without costs of changes and without new jobs. Jobs that arrive later are accounted for by a wider interval:
the longer a job has to run, the wider. A job that is far along is assumed to keep its present speed. Shares are
recomputed after every end or, with many jobs, after the ends of several.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coadapt.configure import FittedCurve
from coadapt.model import Forecast
from coadapt.policies.coadapt.offers import LEVELS, Offers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
#: Of so many jobs one ends before shares are set anew; of more, as many times one.
_STEP = 6
#: Deviation of the logarithm of the time left: at the end of a run, what its beginning adds, and what others add that may
#: come while it runs. Chosen on the bundled workload and tuned-1.0x-1.
_AT_END, _AT_BEGINNING, _BY_OTHERS = 0.22, 0.33, 0.35
_HOUR = 3600.0
#: Past two thirds of a run only the speed it has counts. Chosen on tuned-1.0x-1 and -2, where errors past half fell from 31 to
#: 20 and from 31 to 18%.
_TRUST = 1.5


def ends_s(offers: Offers, p: float) -> Floats:
    """Returns the seconds until each job of ``offers`` ends; ``p`` is the exponent of the heSRPT shares."""
    count = len(offers.jobs)
    known = ~offers.unknown & np.isfinite(offers.left_s)
    usual = float(np.median(offers.left_s[known])) if known.any() else 600.0
    left = np.where(known, offers.left_s, usual)
    sizes, speeds = _speeds(offers)
    gpus, power = float(sum(offers.capacity)), 1 / (1 - p)
    ends, now = np.zeros(count), 0.0
    slopes = np.diff(speeds, axis=1, append=speeds[:, -1:]) / np.diff(sizes, append=np.inf)
    # largest first, and with these shares they stay in that order, or nearly so
    order = np.argsort(-left, kind="stable")
    left = left[order]
    # each round ends at least one job; figures that are not numbers end none, and then the rest has no known end
    for _ in range(count):
        if not order.size:
            break
        share = np.diff((np.arange(order.size + 1) / order.size) ** power) * gpus
        at = np.searchsorted(sizes, share, side="right") - 1
        rate = speeds[order, at] + slopes[order, at] * (share - sizes[at])
        times = left / np.maximum(rate, 1e-12)
        few = order.size // _STEP
        step = float(np.partition(times, few)[few])
        done = times <= step * (1 + 1e-9)
        if not done.any():
            ends[order] = math.inf
            break
        ends[order[done]] = now + times[done]
        now += step
        left = (left - rate * step)[~done]
        again = np.argsort(-left, kind="stable")
        left, order = left[again], order[~done][again]
    return ends


def _speeds(offers: Offers) -> tuple[Floats, Floats]:
    """Sizes, and each job's best speed-up on no more than so many GPUs of any type."""
    sizes = np.unique(offers.size)
    speedup = offers.expected / offers.least[:, None]
    best = np.stack([speedup[:, offers.size == size].max(axis=1) for size in sizes], axis=1)
    return sizes.astype(np.float64), np.maximum.accumulate(best, axis=1)


def forecast(offers: Offers, choice: Ints, row: int, ends: Floats, cost_s: float) -> Forecast | None:
    """Forecasts when one job ends, with an 80% interval; None where the end cannot be predicted.

    Args:
        offers: the options of this decision.
        choice: index of the option chosen for each job.
        row: index of the job.
        ends: seconds until each job ends in the fluid model (``ends_s``).
        cost_s: seconds that a change of this job takes.
    """
    option = int(choice[row])
    if offers.unknown[row] or not offers.size[option] or not math.isfinite(offers.left_s[row]):
        return None
    done = _share_done(offers, row)
    # the further a job has come, the more it goes on with what it has; at first it shares as the others do
    here = float(offers.left_s[row] * offers.least[row] / offers.goodput[row, option])
    by_what_it_has = min(_TRUST * (done or 0.0), 1.0)
    middle = max(float(ends[row]), 1e-9) ** (1 - by_what_it_has) * max(here, 1e-9) ** by_what_it_has
    curve = offers.curves[row]
    if isinstance(curve, FittedCurve):
        # on what it will have most of the time, by the speed it was just found to have on average
        speeds = offers.expected[row] / offers.least[row]
        usual = int(
            np.abs(np.where(speeds > 0, speeds, np.inf) - offers.left_s[row] / max(middle, 1e-9)).argmin()
        )
        per = max(offers.jobs[row].spec.gpus_per_replica, 1)
        place = int(offers.nodes[usual]), int(offers.size[usual]) // per
        middle /= curve.quickening(*place, offers.types[offers.kind[usual]])
    start = cost_s if option != offers.current[row] else 0.0
    low, high = (
        float(offers.left_levels_s[row, at]) / max(float(offers.left_s[row]), 1e-9)
        for at in (LEVELS.index(0.1), LEVELS.index(0.9))
    )
    hours = middle / _HOUR
    own = _AT_END + _AT_BEGINNING * (1 - (done or 0.0))
    spread = 1.28 * math.hypot(own, _BY_OTHERS * hours / (1 + hours))
    left = curve.remaining()
    earliest, latest = (start + middle * low) * math.exp(-spread), (start + middle * high) * math.exp(spread)
    if not math.isfinite(earliest) or not math.isfinite(start + middle):
        return None
    return Forecast(
        left_s=round(start + middle, 1),
        low_s=round(earliest, 1),
        high_s=round(latest, 1) if math.isfinite(latest) else None,
        method=max(left.weights, key=lambda name: left.weights[name], default=""),
        done=done,
    )


def _share_done(offers: Offers, row: int) -> float | None:
    done, left = offers.jobs[row].work or 0.0, float(offers.left_s[row] * offers.least[row])
    return round(done / (done + left), 4) if math.isfinite(left) and done + left > 0 else None
