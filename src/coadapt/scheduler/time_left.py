"""How long a running job will take where the policy has not said it: by its own pace and what is known of its length.

Pace: the stretches between its reports (``predict.pace``, ``predict.eta``); with one stretch alone that one, within a wide
interval. Length: ``predict.remaining``, with past jobs like it. A job without a model takes the time it trains. No step-time model
is fitted here: this is read far more often than decisions are made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from coadapt.model.snapshot import Phase
from coadapt.predict import pace
from coadapt.predict._base import Estimate
from coadapt.predict.adaptive_run import place
from coadapt.predict.eta import eta_of
from coadapt.predict.evidence import evidence_for
from coadapt.predict.history import Prior
from coadapt.predict.remaining import RemainingWork, remaining
from coadapt.scheduler.aged import Interval
from coadapt.scheduler.job_state import JobState

#: Half-width, as a logarithm, of a pace that was seen once.
_ONCE = 0.5


class Expected(NamedTuple):
    """Seconds to the end from ``said_at``, and the share of the work that was done then; None: not known."""

    said_at: float
    left: Interval | None = None
    done: float | None = None


def expected(job: JobState, prior: Prior) -> Expected:
    """As of its last report, or of its last start; depends on nothing that changes without a report or an action."""
    if job.spec.batch is None and job.work is None:
        return _by_the_clock(job, prior)
    said_at = job.measured_at if job.measured_at is not None else job.submitted_at
    done = job.work or 0.0
    left = remaining(evidence_for(job.spec, done=done, course=job.course, past=prior, told=job.told))
    share = _share(done, left)
    if job.phase is not Phase.RUNNING or job.work is None:
        return Expected(said_at, None, share)
    return Expected(said_at, _interval(_seconds(job, left)), share)


def _by_the_clock(job: JobState, prior: Prior) -> Expected:
    """A job whose work is the seconds it trains."""
    done = job.ran_before_s
    left = remaining(evidence_for(job.spec, done=done, past=prior, told=job.told))
    since = job.running_since if job.running_since is not None else job.submitted_at
    if job.running_since is None:
        return Expected(since, None, _share(done, left))
    return Expected(since, _interval(left.estimate), _share(done, left))


def _seconds(job: JobState, left: RemainingWork) -> Estimate | None:
    """Work left at its present pace."""
    state = pace.START
    at = reached = 0.0
    for stretch in job.stretches:
        began = stretch.around - stretch.done / 2
        # what lies between two stretches is no one's: a change, or a start from a checkpoint
        state = pace.observe(state, at, began) if state.at is None else state
        if began != reached and state.steps:
            state = pace.resume(state, at, began)
        at, reached = at + stretch.seconds, began + stretch.done
        state = pace.observe(state, at, reached, "/".join(map(str, place(stretch.config))))
    known = eta_of(state, left)
    if known is not None:
        return known
    if not job.goodput:
        return None
    work = left.estimate
    low, high = (work.low / math.exp(_ONCE), work.high * math.exp(_ONCE))
    return Estimate(value=work.value / job.goodput, low=low / job.goodput, high=high / job.goodput)


def _interval(seconds: Estimate | None) -> Interval | None:
    if seconds is None or not math.isfinite(seconds.value):
        return None
    high = seconds.high if math.isfinite(seconds.high) else None
    return Interval(value=seconds.value, low=seconds.low, high=high)


def _share(done: float, left: RemainingWork) -> float | None:
    total = done + left.estimate.value
    return done / total if 0 < total < math.inf else None
