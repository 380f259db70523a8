"""How a job goes on whose GPUs and batch size change: by its steps and its gradients, not by its pace alone.

A pace (``pace``, ``eta``) begins anew with every resize, and does not know that statistical efficiency grows. Here

    speed(work, configuration) = throughput(configuration) x efficiency(phi(work), M)        work per second
    seconds left               = level x integral of d work / speed

- throughput: ``step_time``, fitted to this job's points, with the points of past jobs like it as a prior;
- phi ahead: the course that past jobs like it took, moved to where this one stands; without them ``noise`` alone;
- level: real over predicted seconds so far. That of the present placement, with as much evidence as a few reports
  to say it is the run's, and a little that it is 1: a new placement is known at once, and a straggler soon.

``Expected`` answers the questions of a simulator's ground truth (``simulate.truth.Truth``), so that a live queue can be
simulated forward with it and the decisions to come are part of an ETA. Without a simulation: ``time_left`` on the
present GPUs, and ``sharing``, the drift of a job towards its fair share of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from coadapt.model import Batch, Configuration, Fact, Measurement
from coadapt.predict import noise, step_time
from coadapt.predict._base import FloatArray
from coadapt.predict.efficiency import UNKNOWN, gain
from coadapt.predict.history import NOISE_SHARES, Prior
from coadapt.predict.step_time import EMPTY_TABLE, AnyParams, StepTimeTable

#: Stretches between reports that are kept.
MAX_STRETCHES = 64
#: Reports' worth of evidence: for the run's level against that of the placement, and for 1 against the run's.
_RUN_LEVEL, _NO_LEVEL = 4.0, 2.0
#: Relative deviation of one stretch before there are several, and reports' worth of evidence for it.
_JITTER, _JITTER_REPORTS = 0.15, 3.0
#: Past jobs less like the new one than this say nothing about its steps and gradients.
_ALIKE = 0.8
#: Own points at which the pool's course is moved by half of what separates them from it.
_OFFSET_POINTS = 2.0
#: Parts of the work left that are valued one by one.
_PARTS = 16
#: A share within exp(+-this) of the fair one is left alone; of what is beyond, this part is made up for in the long run,
#: half of it in so many decisions. Chosen on tuned-1.0x-1 and -2 under Pollux.
_TOLERATED, _MADE_UP, _HALF_WAY = 0.2, 0.7, 10.0
_LARGEST = 40.0

#: (examples per GPU and pass, extra passes) for a noise scale in examples: what the agent would choose.
Choose = Callable[[float], tuple[int, int]]


class Stretch(Fact, frozen=True):
    """From one report to the next on the same GPUs: where, how much work, around how much done, in what time."""

    config: Configuration
    done: float
    around: float
    seconds: float


class AdaptiveRun(Fact, frozen=True):
    """What a controller keeps of a job's reports. Times in seconds of running."""

    noise: noise.NoiseTable
    table: StepTimeTable = EMPTY_TABLE
    stretches: tuple[Stretch, ...] = ()
    at: float | None = None
    work: float = 0.0
    #: Of the last report; None where a change came since.
    config: Configuration | None = None


def start(initial_batch: float) -> AdaptiveRun:
    """A job that has reported nothing."""
    return AdaptiveRun(noise=noise.NoiseTable(initial_batch=initial_batch))


def observe(run: AdaptiveRun, at: float, measurement: Measurement) -> AdaptiveRun:
    """The run after a report that came at ``at``. A report without progress leaves its time to the next one."""
    m = measurement
    run = replace(run, table=step_time.observe(run.table, m), noise=noise.observe(run.noise, m))
    if m.work is None or not math.isfinite(m.work) or not math.isfinite(at):
        return run
    same = run.config is not None and _placement(run.config) == _placement(m.config)
    if same and run.at is not None and at >= run.at and m.work == run.work:
        return replace(run, config=m.config)
    stretches = run.stretches
    if same and run.at is not None and at > run.at and m.work > run.work:
        done = m.work - run.work
        stretch = Stretch(config=m.config, done=done, around=run.work + done / 2, seconds=at - run.at)
        stretches = (*stretches[-(MAX_STRETCHES - 1) :], stretch)
    return replace(run, stretches=stretches, at=at, work=m.work, config=m.config)


def resume(run: AdaptiveRun, at: float) -> AdaptiveRun:
    """Training goes on at ``at`` after a change; what the next report tells lies partly before it."""
    return replace(run, at=at, config=None)


def _placement(config: Configuration) -> tuple[str, int, int]:
    return config.gpu_type, config.nodes, config.replicas


class Expected:
    """How a job is expected to behave from here on. Pure: same question, same answer; made by ``expect``."""

    def __init__(
        self,
        run: AdaptiveRun,
        params: AnyParams,
        log_phi: FloatArray | None,
        *,
        limits: Batch,
        total: float,
        data_size: int,
        max_workers: int,
    ) -> None:
        self._params, self._limits, self.total = params, limits, total
        #: At M0, at the middle of every epoch.
        self._log_phi = log_phi
        self.data_size, self.max_workers = data_size, max_workers
        self.gpu_types = ("gpu",)
        self.epochs = _PARTS if log_phi is None else len(log_phi)
        self._times: dict[tuple[str, int, int, int], tuple[float, float]] = {}
        self._here = _placement(run.stretches[-1].config) if run.stretches else None
        self._level, self._level_here, self.deviation = 1.0, 1.0, _JITTER
        self._set_levels(run)

    def _set_levels(self, run: AdaptiveRun) -> None:
        """Real over predicted seconds: of the run, of its present placement, and how sure the latter is."""
        if not run.stretches:
            return
        # by the gradients measured then: errors of the course ahead are not errors of the steps
        points = np.array(run.noise.points or ((0.0, -_LARGEST, 0.0),))
        around = np.log([s.around for s in run.stretches])
        measured = np.interp(around, points[:, 0], points[:, 1]).tolist()
        predicted = np.array(
            [
                s.done / self._raw_speed(s.config, self._carried(log_phi, s.config.batch))
                for s, log_phi in zip(run.stretches, measured, strict=True)
            ]
        )
        seconds = np.array([s.seconds for s in run.stretches])
        here = np.array([_placement(s.config) == self._here for s in run.stretches])
        report_s = float(predicted.mean())
        assumed = _NO_LEVEL * report_s
        self._level = float((seconds.sum() + assumed) / (predicted.sum() + assumed))
        assumed = _RUN_LEVEL * report_s
        self._level_here = float(
            (seconds[here].sum() + assumed * self._level) / (predicted[here].sum() + assumed)
        )
        stray = np.log(seconds / predicted) - math.log(self._level)
        count = len(stray) + _JITTER_REPORTS
        jitter = math.sqrt((float(stray @ stray) + _JITTER_REPORTS * _JITTER**2) / count)
        self.deviation = jitter / math.sqrt(float(here.sum()) + _RUN_LEVEL)

    def limits(self, gpu_type: str = "") -> Batch:
        """Bounds of the batch size."""
        return self._limits

    def epoch_marks(self) -> tuple[float, ...]:
        """Progress (work / M0) at the end of each epoch: all alike."""
        whole = self.total / self._limits.initial
        return tuple(whole * (number + 1) / self.epochs for number in range(self.epochs))

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        """(step_s, sync_s) of one optimizer step without accumulation, at the level seen so far."""
        key = (gpu_type, len(shape), sum(shape), atomic_batch)
        found = self._times.get(key)
        if found is None:
            at = key[1:]
            step_s = float(step_time.step_time(self._params, *at))
            grad_s = min(float(step_time.grad_time(self._params, *at)), step_s)
            level = self.level(key[:3])
            found = self._times[key] = (level * step_s, level * (step_s - grad_s))
        return found

    def level(self, placement: tuple[str, int, int] | None) -> float:
        """Real over predicted seconds on (GPU type, nodes, replicas)."""
        return self._level_here if placement == self._here else self._level

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """(grad_sqr, grad_var) for M0 in that epoch at a batch size, on the scale of grad_sqr = 1."""
        if self._log_phi is None:
            return UNKNOWN
        return self._carried(float(self._log_phi[min(epoch, self.epochs - 1)]), batch)

    def _carried(self, log_phi: float, batch: int) -> tuple[float, float]:
        if self._log_phi is None:
            return UNKNOWN
        there = float(noise.carried(log_phi, self._limits.initial, batch))
        return 1.0, math.exp(min(there, _LARGEST)) / self._limits.initial

    def steps_until(self, batch: int, epoch: int) -> float:
        """Optimizer steps at a total batch size until the end of that epoch."""
        scale = batch / self._limits.initial
        each = self.epoch_marks()[0]
        return sum(each / gain(*self.gradients(batch, e), scale) for e in range(min(epoch + 1, self.epochs)))

    def metric(self, batch: int, epoch: int) -> float | None:
        """Not expected here."""
        return None

    def speed(self, config: Configuration, work: float) -> float:
        """Work per second in a configuration when so much is done."""
        gradients = self.gradients(config.batch, self._epoch(work))
        return self._raw_speed(config, gradients) / self.level(_placement(config))

    def _raw_speed(self, config: Configuration, gradients: tuple[float, float]) -> float:
        c, scale = config, config.batch / self._limits.initial
        per_s = float(step_time.throughput(self._params, c.nodes, c.replicas, c.atomic_batch, c.accumulation))
        return per_s / scale * gain(*gradients, scale)

    def _epoch(self, work: float) -> int:
        return min(max(int(work / self.total * self.epochs), 0), self.epochs - 1)

    def time_left(self, config: Configuration, work: float, choose: Choose | None = None) -> float:
        """Seconds to the end on the present GPUs; ``choose``: the agent's batch size as the noise scale changes."""
        left, seconds = max(self.total - work, 0.0), 0.0
        for part in range(_PARTS):
            around = work + left * (part + 0.5) / _PARTS
            now = config
            if choose is not None:
                _, var = self.gradients(config.batch, self._epoch(around))
                atomic, accumulation = choose(self._limits.initial * var)
                now = replace(config, atomic_batch=atomic, accumulation=accumulation)
            seconds += left / _PARTS / self.speed(now, around)
        return seconds


def expect(
    run: AdaptiveRun,
    *,
    limits: Batch,
    total: float,
    data_size: int,
    max_workers: int,
    prior: Prior | None = None,
    gpu_type: str = "gpu",
) -> Expected | None:
    """What is to be expected of a job, by its own reports and past jobs like it; None where neither says anything."""
    if prior is not None and not (prior.matches and prior.matches[0].likeness >= _ALIKE):
        prior = None
    before = step_time.fit(prior.table, gpu_type=gpu_type) if prior is not None else None
    params = step_time.fit(run.table, before, gpu_type=gpu_type)
    if params is None or not total > 0:
        return None
    return Expected(
        run,
        params,
        _log_phi(run, prior, total, max(round(total / data_size), _PARTS)),
        limits=limits,
        total=total,
        data_size=data_size,
        max_workers=max_workers,
    )


def _log_phi(run: AdaptiveRun, prior: Prior | None, total: float, epochs: int) -> FloatArray | None:
    """log phi at M0 at the middle of every epoch; None where nothing is known."""
    shares = (np.arange(epochs) + 0.5) / epochs
    if prior is None or not prior.noise:
        params = noise.fit(run.noise)
        return None if params is None else noise.log_phi(params, shares * total, params.initial_batch)[0]
    course = np.log([estimate.value for estimate in prior.noise])
    ahead = np.interp(shares, NOISE_SHARES, course)
    if not run.noise.points:
        return np.asarray(ahead)
    points = np.array(run.noise.points)
    own = np.exp(points[:, 0]) / total
    recent = own >= own[-1] / 2
    apart = (points[:, 1] - np.interp(own, NOISE_SHARES, course))[recent]
    return np.asarray(ahead + apart.sum() / (len(apart) + _OFFSET_POINTS))


def sharing(seconds: float, gpus: float, fair: float, *, every_s: float = 60.0) -> float:
    """``seconds`` on the present GPUs where a scheduler that decides every ``every_s`` gives and takes GPUs.

    A job with far fewer GPUs than its fair share (all of them / jobs) gets more as time goes on, one with far more loses some;
    around its fair share it mostly stays as it is.
    """
    apart = math.log(fair / gpus)
    apart = math.copysign(max(abs(apart) - _TOLERATED, 0.0), apart)
    due = seconds**2 / (seconds**2 + (_HALF_WAY * every_s) ** 2)
    return seconds * math.exp(-_MADE_UP * due * apart)
