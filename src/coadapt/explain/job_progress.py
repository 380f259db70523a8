"""Status of jobs at a moment: phase, time left with its interval, speed, efficiency; as ``coadapt ps`` shows it.

Values that take more than a few operations are cached until the job reports or changes: reading ten thousand jobs
again fits and replays nothing. Nothing here changes the state.

**Forecast of the policy.** Between decisions it is conditioned on the job not having ended yet. The time to the end,
T, is log-normal on either side of its median, by its 80% interval:

    P(T <= t) = Phi(log(t / median) / s)        s = log(high / median) / 1.28 above the median, log(median / low) / 1.28 below

After e seconds P(T <= t | T > e) = (F(t) - F(e)) / (1 - F(e)). A job that is later than the whole forecast is
expected to go on for a share of the time it has taken, as the far tail of the same curve does.

**Where the policy gave no forecast,** the time left follows from the job's pace and length. The pace is that of the
stretches between its reports (``prediction.remaining.eta_estimate``); with a single stretch that one, within a wide
interval. The length is that of ``prediction.remaining.work``, with past jobs like it. A job without a model is
measured by the time it trains. No step-time model is fitted here: statuses are read far more often than decisions are
made.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.model.snapshot import ENDED, Phase
from coadapt.prediction.gradient_noise import efficiency
from coadapt.prediction.remaining import eta_estimate
from coadapt.prediction.remaining.adaptive_run import place
from coadapt.prediction.remaining.eta_estimate import eta_of
from coadapt.prediction.remaining.past_jobs import Prior
from coadapt.prediction.remaining.work import RemainingWork, evidence_for, remaining
from coadapt.scheduler.curve_source import Priors
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState

_NORMAL = NormalDist()
_Z80 = _NORMAL.inv_cdf(0.9)
#: Spread where the upper end is open, and the least there is.
_OPEN, _LEAST = 3.0, 1e-6
#: Beyond this probability the curve is not asked any more.
_FAR = 1 - 1e-6


class TimeLeft:
    """Seconds until a job ends: as said, and ``elapsed_s`` later."""

    __slots__ = ("_above", "_below", "_elapsed_s", "_gone", "_median_s", "_open", "_stretch")

    def __init__(self, said: Interval, elapsed_s: float) -> None:
        self._median_s = max(said.value, 1e-3)
        self._open = said.high is None
        high = (
            _OPEN if said.high is None else math.log(max(said.high, self._median_s) / self._median_s) / _Z80
        )
        low = math.log(self._median_s / min(max(said.low, 1e-6), self._median_s)) / _Z80
        self._above, self._below = max(high, _LEAST), max(low, _LEAST)
        self._elapsed_s = max(elapsed_s, 0.0)
        #: Chance that it should have ended by now; and by how much it is beyond the part of the curve that is asked.
        self._gone, self._stretch = self._by(self._elapsed_s), 1.0
        if self._gone > _FAR:
            self._gone, self._stretch = _FAR, self._elapsed_s / self._at(_FAR)

    def _by(self, seconds: float) -> float:
        """Chance of an end within so many seconds from when it was said."""
        if seconds <= 0:
            return 0.0
        apart = math.log(seconds / self._median_s)
        return _NORMAL.cdf(apart / (self._above if apart > 0 else self._below))

    def _at(self, chance: float) -> float:
        z = _NORMAL.inv_cdf(min(max(chance, 1e-12), 1 - 1e-12))
        return self._median_s * math.exp(z * (self._above if z > 0 else self._below))

    def quantile(self, level: float) -> float:
        """Seconds from now within which it ends with this probability."""
        found = self._at(self._gone + level * (1 - self._gone)) * self._stretch
        return max(found - self._elapsed_s, 0.0)

    @property
    def interval(self) -> Interval:
        """Seconds from now: median and 80% interval."""
        high = None if self._open else self.quantile(0.9)
        return Interval(value=self.quantile(0.5), low=self.quantile(0.1), high=high)

    def longer_than(self, seconds: float) -> float:
        """Chance that it takes longer than so many seconds from now."""
        if seconds <= 0:
            return 1.0
        by = self._by((self._elapsed_s + seconds) / self._stretch)
        return min(max((1 - by) / (1 - self._gone), 0.0), 1.0)


#: Half-width, as a logarithm, of a pace that was seen once.
_ONCE = 0.5


class Expected(NamedTuple):
    """Seconds to the end from ``said_at``, and the share of the work that was done then; None: not known."""

    said_at: float
    left: Interval | None = None
    done: float | None = None


def expected(job: JobState, prior: Prior) -> Expected:
    """Returns the expectation as of the job's last report or start; it changes only with a report or an action."""
    if job.running_since is not None and (total_s := _told_s(job)) is not None:
        return _by_its_log(job, job.running_since, total_s)
    if job.spec.batch is None and job.work is None:
        return _by_the_clock(job, prior)
    said_at = job.measured_at if job.measured_at is not None else job.submitted_at
    done = job.work or 0.0
    left = remaining(evidence_for(job.spec, done=done, course=job.course, past=prior, told=job.told))
    share = _share(done, left)
    if job.phase is not Phase.RUNNING or job.work is None:
        return Expected(said_at, None, share)
    seconds = _seconds(job, left)
    return Expected(said_at, _known(seconds), share)


def _told_s(job: JobState) -> float | None:
    """Seconds of training in all, of a job that says which share is done, as its log does, and no work."""
    if job.work is not None or job.spec.target is not None or not job.share or job.share_of <= 0:
        return None
    # a declared duration is the work of a job without a model
    return None if job.spec.batch is None and job.declared is not None else job.share_of / job.share


def _by_its_log(job: JobState, since: float, total_s: float) -> Expected:
    """From its last word on, at the one pace that is known."""
    reached = max(job.share_of, job.ran_before_s)
    left_s = max(total_s - reached, 0.0)
    pace = Interval(value=left_s, low=left_s / math.exp(_ONCE), high=left_s * math.exp(_ONCE))
    return Expected(since + reached - job.ran_before_s, pace, job.share)


def _by_the_clock(job: JobState, prior: Prior) -> Expected:
    """A job whose work is the seconds it trains."""
    done = job.ran_before_s
    left = remaining(evidence_for(job.spec, done=done, past=prior, told=job.told))
    since = job.running_since if job.running_since is not None else job.submitted_at
    if job.running_since is None:
        return Expected(since, None, _share(done, left))
    return Expected(since, _known(left.estimate), _share(done, left))


def _seconds(job: JobState, left: RemainingWork) -> Interval | None:
    """Work left at its present pace."""
    state = eta_estimate.START
    at = reached = 0.0
    for stretch in job.stretches:
        began = stretch.around - stretch.done / 2
        # what lies between two stretches is no one's: a change, or a start from a checkpoint
        state = eta_estimate.observe(state, at, began) if state.at is None else state
        if began != reached and state.steps:
            state = eta_estimate.resume(state, at, began)
        at, reached = at + stretch.seconds, began + stretch.done
        state = eta_estimate.observe(state, at, reached, "/".join(map(str, place(stretch.config))))
    known = eta_of(state, left)
    if known is not None:
        return known
    if not job.goodput:
        return None
    work = left.estimate
    low, high = (work.low / math.exp(_ONCE), work.upper * math.exp(_ONCE))
    return Interval(value=work.value / job.goodput, low=low / job.goodput, high=high / job.goodput)


def _known(left: Interval | None) -> Interval | None:
    return left if left is not None and math.isfinite(left.value) else None


def _share(done: float, left: RemainingWork) -> float | None:
    total = done + left.estimate.value
    return done / total if 0 < total < math.inf else None


#: Phases in which an end can be told: it trains, or is about to.
_UNDER_WAY = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESIZING})


class Standing(Fact, frozen=True):
    """The status of one job at one moment."""

    #: Share of its work that is done, where that is known.
    progress: float | None = None
    #: When it ends, on the state's clock.
    eta: Interval | None = None
    #: Chance that it misses its deadline; None without one, or where nothing is known.
    late: float | None = None
    #: Statistical efficiency of its batch, and work per second, as last measured.
    efficiency: float | None = None
    goodput: float | None = None
    gpu_s: float = 0.0
    restarts: int = 0


class Standings:
    """Answers for the jobs of one state, or of one that takes its place."""

    def __init__(self) -> None:
        self._priors = Priors()
        self._expected: dict[str, tuple[tuple[object, ...], Expected]] = {}

    def of(self, state: SchedulerState, job: JobState, now: float) -> Standing:
        """Returns the status of the job at ``now``, which may be later than the last record."""
        ended_at = job.finished_at
        known = None if ended_at is not None else self.left(state, job, now)
        return Standing(
            progress=self._progress(state, job, now),
            eta=None if known is None else known.interval.shifted(now),
            late=_late(job, known, now),
            efficiency=_efficiency(job),
            goodput=_goodput(job),
            gpu_s=job.attained_gpu_s(now if ended_at is None else ended_at),
            restarts=max(job.attempt - 1, 0),
        )

    def left(self, state: SchedulerState, job: JobState, now: float) -> TimeLeft | None:
        """Seconds until it ends: by the policy's forecast for what it has, else by its own pace; None: not known."""
        if job.phase not in _UNDER_WAY or not job.target or job.stopped_for is not None:
            return None
        said, at = job.forecast, job.forecast_at
        # a log that tells the share that is done knows more than a forecast from the start, and no decision follows a report
        tells = job.running_since is not None and _told_s(job) is not None
        if said is not None and at is not None and at >= (job.changed_at or 0.0) and not tells:
            outrun = said.high_s is not None and now - at > said.high_s
            # a job that has taken longer than was said tells more by itself, if it tells anything
            if not outrun or not job.stretches:
                return TimeLeft(said.left, now - at)
        own = self._own(state, job)
        return None if own.left is None else TimeLeft(own.left, now - own.said_at)

    def _own(self, state: SchedulerState, job: JobState) -> Expected:
        key = (
            job.measured_at,
            job.changed_at,
            job.running_since,
            job.attempt,
            job.spec,
            len(job.course),
            job.share,
        )
        kept = self._expected.get(job.id)
        if kept is None or kept[0] != key:
            self._priors.follow(state.pool)
            try:
                found = expected(job, self._priors.of(job.spec))
            except (ArithmeticError, ValueError):
                # figures of one job that overflow must not spoil the list of all
                found = Expected(job.submitted_at if job.measured_at is None else job.measured_at)
            kept = self._expected[job.id] = key, found
        return kept[1]

    def _progress(self, state: SchedulerState, job: JobState, now: float) -> float | None:
        if job.phase is Phase.SUCCEEDED:
            return 1.0
        declared, done = job.declared, job.work
        if done is None and job.spec.batch is None:
            done = job.ran_s(now if job.finished_at is None else job.finished_at)
        # a program that prints plain lines tells the share of its run, and no work
        silent = done is None and job.share is not None
        if declared is not None and job.spec.target is None and (done or 0.0) <= declared and not silent:
            return (done or 0.0) / declared if declared > 0 else None
        if job.share is not None and job.spec.target is None:
            return job.share
        if done is None or job.phase in ENDED:
            return None
        return self._own(state, job).done


def _late(job: JobState, known: TimeLeft | None, now: float) -> float | None:
    if job.spec.deadline_s is None:
        return None
    deadline_at = job.submitted_at + job.spec.deadline_s
    if job.finished_at is not None:
        return float(job.phase is not Phase.SUCCEEDED or job.finished_at > deadline_at)
    if now > deadline_at:
        return 1.0
    return None if known is None else known.longer_than(deadline_at - now)


def _efficiency(job: JobState) -> float | None:
    if job.config is None or job.spec.batch is None or job.grad_sqr is None or job.grad_var is None:
        return None
    return min(float(efficiency(job.grad_sqr, job.grad_var, job.config.batch / job.spec.batch.initial)), 1.0)


def _goodput(job: JobState) -> float | None:
    """Between its last reports; before there are two, by the steps of the first."""
    config = job.config
    if job.goodput is not None or config is None or job.spec.batch is None:
        return job.goodput
    useful = _efficiency(job)
    if useful is None:
        useful = 1.0 if config.batch == job.spec.batch.initial else None
    for row in job.table.rows if useful is not None else ():
        if (row.gpu_type, row.nodes, row.replicas, row.atomic_batch) == (
            config.gpu_type,
            config.nodes,
            config.replicas,
            config.atomic_batch,
        ):
            step_s = row.step_s + config.accumulation * max(row.step_s - row.sync_s, 0.0)
            return config.batch / step_s * (useful or 1.0)
    return None
