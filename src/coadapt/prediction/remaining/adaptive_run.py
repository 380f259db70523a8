"""The record of a job whose GPUs and batch size change, and the time it will take to end.

The record (``AdaptiveRun``) has steps, gradients, and stretches of time. A stretch lies between two reports in the same
place: an amount of work, the work done around it, and its seconds. The stretch in which a change falls belongs to neither
place and is left out.

A pace (``eta_estimate``) starts anew with every resize, and does not know that statistical efficiency grows. Here

    speed(work, configuration) = throughput(configuration) x efficiency(phi(work), M) / level      work per second
    seconds left               = integral of d work / speed

- throughput: ``prediction.step_time._base``, fitted to this job's points, with the points of similar past jobs as a prior;
- phi ahead: the course of similar past jobs, shifted to the present phi of this one; without them ``prediction.gradient_noise`` alone;
- level: real over predicted seconds so far. That of the present place, shrunk towards that of the whole run with the
  weight of a few reports, and slightly towards 1: a new place is known at once, and a straggler soon.

That is the time left on the present GPUs. ``sharing`` adds the effect of a scheduler that adds and removes GPUs: a drift
towards the fair share, and a wider interval. ``eta_estimate`` turns both into an ETA with a calibrated interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Batch, Configuration, Fact, Measurement
from coadapt.prediction import gradient_noise
from coadapt.prediction._base import FloatArray
from coadapt.prediction.gradient_noise import UNKNOWN, gain
from coadapt.prediction.remaining.past_jobs import NOISE_SHARES, Prior
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import step_table
from coadapt.prediction.step_time._base import FittedStepTime
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable

#: Stretches that are kept.
MAX_STRETCHES = 64

#: (GPU type, nodes, replicas).
Place = tuple[str, int, int]


class Stretch(Fact, frozen=True):
    """The time between two reports on the same GPUs: place, amount of work, work done around it, and seconds."""

    config: Configuration
    done: float
    around: float
    seconds: float


class AdaptiveRun(Fact, frozen=True):
    """The record of a job. Times in seconds of running: the clock stands still while a job holds no GPUs."""

    noise: gradient_noise.NoiseTable
    table: StepTimeTable = EMPTY_TABLE
    stretches: tuple[Stretch, ...] = ()
    at: float | None = None
    work: float = 0.0
    #: Of the last report; None where a change came since.
    config: Configuration | None = None


def start(initial_batch: float) -> AdaptiveRun:
    """The record of a job without reports; ``initial_batch`` is its reference batch size."""
    return AdaptiveRun(noise=gradient_noise.NoiseTable(initial_batch=initial_batch))


def observe(run: AdaptiveRun, at: float, measurement: Measurement) -> AdaptiveRun:
    """The record after a report at time ``at``. The time of a report without progress is added to the next one."""
    m = measurement
    if not math.isfinite(at):
        raise InputError(f"a report at {at} s: the time must be a number")
    run = replace(run, table=step_table.observe(run.table, m), noise=gradient_noise.observe(run.noise, m))
    if m.work is None or not 0 <= m.work < math.inf:
        return run
    same = run.config is not None and run.at is not None and place(run.config) == place(m.config)
    if same and run.at is not None and at >= run.at and m.work == run.work:
        return replace(run, config=m.config)
    stretches = run.stretches
    # work or time that went back (a restart from a checkpoint) makes no stretch
    if same and run.at is not None and at > run.at and m.work > run.work:
        done = m.work - run.work
        stretch = Stretch(config=m.config, done=done, around=run.work + done / 2, seconds=at - run.at)
        stretches = (*stretches[-(MAX_STRETCHES - 1) :], stretch)
    return replace(run, stretches=stretches, at=at, work=m.work, config=m.config)


def resume(run: AdaptiveRun, at: float) -> AdaptiveRun:
    """Record that training continues at ``at`` after a change; the next report covers time before it in part."""
    return replace(run, at=at, config=None)


def place(config: Configuration) -> Place:
    """The place of a configuration; a change of place begins a new stretch."""
    return config.gpu_type, config.nodes, config.replicas


#: Reports' worth of evidence: for the run's level against that of the place, and for 1 against the run's.
_RUN_LEVEL, _NO_LEVEL = 4.0, 2.0
#: Relative deviation of one stretch before there are several, and reports' worth of evidence for it.
_JITTER, _JITTER_REPORTS = 0.15, 3.0
#: Past jobs less like the new one than this say nothing about its steps and gradients.
_ALIKE = 0.8
#: Own points at which the pool's course is moved by half of what separates them from it.
_OFFSET_POINTS = 2.0
#: Part of what a larger batch size promises, as a logarithm, that is believed: it is chosen for the promise.
_BELIEVED = 0.5
#: Parts of the work left that are valued one by one, and of the whole at which phi is given, at least.
_PARTS = 16
#: A share within exp(+-this) of the fair one is left alone; of what is beyond, this part is made up for in the long run,
#: half of it in this number of decisions. Chosen on tuned-1.0x-1 and -2 under Pollux.
_TOLERATED, _MADE_UP, _HALF_WAY = 0.2, 0.7, 10.0
#: Deviation of the logarithm by resizes to come, in the long run, and decisions in which half its square is reached.
_RESIZES, _RESIZES_HALF = 0.25, 20.0
_LARGEST = 40.0

#: (examples per GPU and pass, extra passes) for a noise scale in examples: what the agent would choose.
Choose = Callable[[float], tuple[int, int]]


class Expected:
    """Expected course of a job; made by ``expect``. Pure: the same question gets the same answer.

    Args:
        run: What was recorded of the job.
        params: Its fitted step times.
        log_phi: Expected logarithm of phi at M0, at the middle of equal parts of the work; None: not known.
        limits: Limits of the batch size.
        total: Work from the beginning of the job to its end.
    """

    def __init__(
        self,
        run: AdaptiveRun,
        params: FittedStepTime,
        log_phi: FloatArray | None,
        limits: Batch,
        total: float,
    ) -> None:
        self.params, self.limits, self.total = params, limits, total
        #: At M0, at the middle of equal parts of the work.
        self._log_phi = log_phi
        self._here: Place | None = place(run.stretches[-1].config) if run.stretches else None
        #: Examples per GPU and pass at which the present place was seen to be as fast as it is.
        self._seen_batch = math.inf
        self._level, self._level_here = 1.0, 1.0
        #: Of the logarithm of the time left on the present GPUs.
        self.deviation = _JITTER
        if run.stretches:
            self._set_levels(run)

    def _set_levels(self, run: AdaptiveRun) -> None:
        """Real over predicted seconds: of the run, of its present place, and how sure the latter is."""
        # by the gradients measured then: errors of the course ahead are not errors of the steps
        points = np.array(run.noise.points or ((0.0, -_LARGEST, 0.0),))
        around = np.log([s.around for s in run.stretches])
        measured = np.interp(around, points[:, 0], points[:, 1]).tolist()
        predicted = np.array(
            [
                s.done / self._modelled_speed(s.config, self._carried(log_phi, s.config.batch))
                for s, log_phi in zip(run.stretches, measured, strict=True)
            ]
        )
        seconds = np.array([s.seconds for s in run.stretches])
        here = np.array([place(s.config) == self._here for s in run.stretches])
        report_s = float(predicted.mean())
        assumed = _NO_LEVEL * report_s
        self._level = float((seconds.sum() + assumed) / (predicted.sum() + assumed))
        assumed = _RUN_LEVEL * report_s
        self._level_here = float(
            (seconds[here].sum() + assumed * self._level) / (predicted[here].sum() + assumed)
        )
        batches = np.log([s.config.atomic_batch for s in run.stretches])
        self._seen_batch = math.exp(float(seconds[here] @ batches[here] / seconds[here].sum()))
        stray = np.log(seconds / predicted) - math.log(self._level)
        count = len(stray) + _JITTER_REPORTS
        jitter = math.sqrt((float(stray @ stray) + _JITTER_REPORTS * _JITTER**2) / count)
        self.deviation = jitter / math.sqrt(float(here.sum()) + _RUN_LEVEL)

    def level(self, at: Place | None) -> float:
        """Real over predicted seconds in a place."""
        return self._level_here if at == self._here else self._level

    def gradients(self, batch: int, work: float) -> tuple[float, float]:
        """(grad_sqr, grad_var) for M0 after an amount of ``work`` at a batch size, on the scale of grad_sqr = 1."""
        if self._log_phi is None:
            return UNKNOWN
        part = int(work / self.total * len(self._log_phi))
        return self._carried(float(self._log_phi[min(max(part, 0), len(self._log_phi) - 1)]), batch)

    def _carried(self, log_phi: float, batch: int) -> tuple[float, float]:
        if self._log_phi is None:
            return UNKNOWN
        there = float(gradient_noise.carried(log_phi, self.limits.initial, batch))
        return 1.0, math.exp(min(there, _LARGEST)) / self.limits.initial

    def speed(self, config: Configuration, work: float) -> float:
        """Work per second in a configuration after an amount of ``work``."""
        level, seen = self.level(place(config)), self._seen_batch
        if place(config) == self._here and config.atomic_batch > seen:
            # what a batch larger than any seen here saves per example is half believed
            each, before = (
                float(self.params.step_time(config.nodes, config.replicas, size)) / size
                for size in (config.atomic_batch, seen)
            )
            level *= max(before / each, 1.0) ** (1 - _BELIEVED)
        return self._modelled_speed(config, self.gradients(config.batch, work)) / level

    def _modelled_speed(self, config: Configuration, gradients: tuple[float, float]) -> float:
        c, scale = config, config.batch / self.limits.initial
        per_s = float(self.params.throughput(c.nodes, c.replicas, c.atomic_batch, c.accumulation))
        return per_s / scale * gain(*gradients, scale)

    def time_left(self, config: Configuration, work: float, choose: Choose | None = None) -> float:
        """Seconds to the end on the present GPUs; ``choose``: the agent's batch size as the noise scale changes."""
        left, seconds = max(self.total - work, 0.0), 0.0
        for part in range(_PARTS):
            around = work + left * (part + 0.5) / _PARTS
            now = config
            if choose is not None:
                _, var = self.gradients(config.batch, around)
                atomic, accumulation = choose(self.limits.initial * var)
                now = replace(config, atomic_batch=atomic, accumulation=accumulation)
            seconds += left / _PARTS / self.speed(now, around)
        return seconds


def expect(
    run: AdaptiveRun, *, limits: Batch, total: float, prior: Prior | None = None, gpu_type: str = "gpu"
) -> Expected | None:
    """Expected course of a job, by its own reports and by similar past jobs; None where neither tells anything.

    Args:
        run: What was recorded of the job.
        limits: Limits of the batch size.
        total: Work from the beginning of the job to its end.
        prior: What similar past jobs let one expect.
        gpu_type: Type of the GPUs that the job will run on.
    """
    if not 0 < total < math.inf:
        raise InputError(f"the work of a job must be a positive number, not {total}")
    if prior is not None and not (prior.matches and prior.matches[0].likeness >= _ALIKE):
        prior = None
    before = step_time.fit(prior.table, gpu_type=gpu_type) if prior is not None else None
    params = step_time.fit(run.table, before, gpu_type=gpu_type)
    return None if params is None else Expected(run, params, _log_phi(run, prior, total), limits, total)


def _log_phi(run: AdaptiveRun, prior: Prior | None, total: float) -> FloatArray | None:
    """log phi at M0 at the middle of every part of the work; None where nothing is known."""
    parts = 6 * _PARTS
    shares = (np.arange(parts) + 0.5) / parts
    if prior is None or not prior.noise:
        params = gradient_noise.fit(run.noise)
        return (
            None
            if params is None
            else gradient_noise.log_phi(params, shares * total, params.initial_batch)[0]
        )
    course = np.log([estimate.value for estimate in prior.noise])
    ahead = np.interp(shares, NOISE_SHARES, course)
    if not run.noise.points:
        return np.asarray(ahead)
    points = np.array(run.noise.points)
    own = np.exp(points[:, 0]) / total
    recent = own >= own[-1] / 2
    apart = (points[:, 1] - np.interp(own, NOISE_SHARES, course))[recent]
    return np.asarray(ahead + apart.sum() / (len(apart) + _OFFSET_POINTS))


def sharing(
    seconds: float, deviation: float, gpus: float, fair: float, *, every_s: float = 60.0
) -> tuple[float, float]:
    """Seconds to the end, and their deviation, under a scheduler that adds and removes GPUs.

    A job with far fewer GPUs than its fair share gets more over time, one with far more loses some; around its fair
    share the allocation mostly stays as it is.

    Args:
        seconds: Seconds to the end on the present GPUs.
        deviation: Standard deviation of their logarithm.
        gpus: GPUs at present.
        fair: Fair share: all GPUs / jobs.
        every_s: Interval of the scheduler's decisions.
    """
    if not (seconds >= 0 and gpus > 0 and fair > 0 and every_s > 0):
        raise InputError(f"{seconds} s on {gpus} GPUs, fair {fair}, every {every_s} s: all must be positive")
    apart = math.log(fair / gpus)
    apart = math.copysign(max(abs(apart) - _TOLERATED, 0.0), apart)
    due = seconds**2 / (seconds**2 + (_HALF_WAY * every_s) ** 2)
    drifted = seconds * math.exp(-_MADE_UP * due * apart)
    return drifted, math.hypot(deviation, _RESIZES * math.sqrt(drifted / (drifted + _RESIZES_HALF * every_s)))
