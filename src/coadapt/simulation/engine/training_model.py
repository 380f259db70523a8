"""Training of one job in virtual time: how far it is, how fast it proceeds, and when something happens next.

``Training`` is the protocol that the simulated executor uses. It has three implementations here:

``TimedTraining``: a job known only by its recorded duration.

``ProfiledTraining``: a job whose behaviour is known, with step times and gradient noise of the ground truth, and the
agent inside. Rate of progress = gain / (step + s (step - sync)) in scale-invariant iterations per second, with s
accumulation steps and gain = (var + sqr) / (var/scale + sqr), scale = batch / M0; progress x M0 is work. The agent
measures each configuration when it first runs it, chooses its batch size anew at every end of an epoch and at every
report (``configure.best_batch``, the function the real agent uses), and reports at multiples of ``report_s`` when there
is something new. ``resolution_s=1`` rounds the ends of epochs to whole seconds, as the simulator published with Pollux
does.

``ServedTraining``: a job with parameter servers, whose steps follow the Optimus formula
(``simulation.truth.parameter_server_speed``). The duration of a step follows from the placement of workers and servers;
the job is done when declared epochs x data size examples have been seen. It reports once per placement, with its
progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from coadapt.configure import best_batch
from coadapt.errors import InputError
from coadapt.model import SERVER, WORKER, Batch, Configuration, JobSpec, Measurement, Placement
from coadapt.prediction import gradient_noise
from coadapt.prediction.step_time import DEFAULT_MODEL, step_table
from coadapt.prediction.step_time._base import StepTimeModel, step_time_model
from coadapt.simulation.engine.interference import MEASURED_LINK, NONE, Slowdown
from coadapt.simulation.truth._base import Truth
from coadapt.simulation.truth.parameter_server_speed import TEN_GIGABIT, ParameterServerTruth


class Training(Protocol):
    """Protocol of a job's training, advanced by the simulated executor; all times are virtual."""

    finished: bool
    #: When something happens next if nothing is changed from outside; inf while paused.
    next_at: float
    #: Speed of the links that its synchronisation was measured over, bytes/s.
    measured_link: float
    #: True while it waits for the next round to begin (``stepped_training``).
    waits: bool

    def place(self, placement: Placement) -> None:
        """Sets the placement; the agent picks its batch size for it. Training is still paused."""

    def resume(self, at: float) -> None:
        """Continues training at time ``at``."""

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Stops training at time ``at``; with ``lost`` the progress since the last saved state is lost."""

    def advance(self, at: float) -> Measurement | None:
        """Advances the job to time ``at``; returns a report if one is due."""

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Sets a new slowdown by interference from time ``at`` on."""

    def hold_until(self, at: float) -> None:
        """Lets its round end at ``at``, if that is later; nothing for a training without rounds."""


class WithoutRounds:
    """Base of trainings that go on until they are done or stopped."""

    waits = False

    def hold_until(self, at: float) -> None:
        """Does nothing: there is no round that could end later."""


class TimedTraining(WithoutRounds):
    """Work is the recorded duration at the requested size, in seconds; it reports nothing until it ends.

    Its state counts as saved when it is stopped in an orderly way, and is lost with its node.
    """

    measured_link = MEASURED_LINK

    def __init__(self, duration_s: float, *, done_s: float = 0.0) -> None:
        self.left_s = max(duration_s - done_s, 0.0)
        self.finished = False
        self.next_at = math.inf
        self._saved_s = self.left_s
        self._since: float | None = None
        self._slowdown = NONE

    def place(self, placement: Placement) -> None:
        """Sets the placement, which does not change the speed of a recorded job."""
        self._slowdown = NONE

    def resume(self, at: float) -> None:
        """Continues training at time ``at``."""
        self._since = at
        self.next_at = at + self.left_s / self._slowdown.rate

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Stops training at time ``at``; with ``lost`` it falls back to the last saved state."""
        self._settle(at)
        self.left_s = self._saved_s if lost else self.left_s
        self._saved_s, self._since, self.next_at = self.left_s, None, math.inf

    def advance(self, at: float) -> Measurement | None:
        """Advances the job to time ``at``; it never reports."""
        if at >= self.next_at:
            self.left_s, self.finished, self.next_at = 0.0, True, math.inf
        else:
            self._settle(at)
        return None

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Sets a new slowdown. Only its rate counts: the share of synchronisation in a recorded step is not known."""
        self._settle(at)
        self._slowdown = slowdown
        if self._since is not None:
            self.next_at = at + self.left_s / slowdown.rate

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self.left_s = max(self.left_s - (at - self._since) * self._slowdown.rate, 0.0)
            self._since = at


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of simulated training: intervals, noise of measurements, stragglers."""

    report_s: float = 30.0
    resolution_s: float = 0.0
    #: Standard deviation of the logarithm of measured times.
    noise: float = 0.0
    #: Chance that a placement has a straggler, and how much longer its steps take.
    straggler_chance: float = 0.0
    straggler_factor: float = 1.5
    #: The step-time model agents choose their batch sizes by; None: the one of the policy.
    step_time_model: str | StepTimeModel | None = None

    def next_report(self, at: float) -> float:
        """The first time after ``at`` when reports are due."""
        return (math.floor(at / self.report_s + 1e-9) + 1) * self.report_s


class ProfiledTraining(WithoutRounds):
    """Implements ``Training`` from a ``Truth``.

    Args:
        spec: Specification of the job.
        truth: Ground truth of its profile.
        options: Intervals, noise of measurements, stragglers.
        rng: Source of noise and stragglers; None: without either.
        progress: Progress at the beginning, in scale-invariant iterations.
    """

    measured_link = MEASURED_LINK

    def __init__(
        self,
        spec: JobSpec,
        truth: Truth,
        options: TrainingOptions,
        rng: np.random.Generator | None = None,
        *,
        progress: float = 0.0,
    ) -> None:
        self.spec, self.truth, self.options = spec, truth, options
        self._model = step_time_model(options.step_time_model or DEFAULT_MODEL)
        self._rng = rng
        self._marks = truth.epoch_marks()
        self._epochs = truth.epochs if spec.epochs is None else min(math.ceil(spec.epochs), truth.epochs)
        self.progress = progress
        self.epoch = sum(1 for mark in self._marks if mark <= progress)
        self.finished = False
        self.next_at = math.inf
        self.table = step_table.EMPTY_TABLE
        self._grad: tuple[float, float] | None = None
        self._grad_batch = 0
        self._saved = (self.progress, self.epoch)
        self._placement = Placement()
        self._shape: tuple[int, ...] = ()
        self._gpu_type = ""
        self._limits = self._limits_on(truth.gpu_types[0])
        self.atomic, self.accumulation = 0, 0
        self._slowdown = NONE
        self._straggling = 1.0
        self._since: float | None = None
        self._rate = 0.0
        self._epoch_at = math.inf
        self._report_at = math.inf
        self._pending: Measurement | None = None

    # -- Training ----------------------------------------------------------------------------------

    def place(self, placement: Placement) -> None:
        """Sets the placement and lets the agent pick its batch size for it."""
        self._placement, self._shape, self._gpu_type = placement, placement.shape, placement.gpu_type
        self._limits = self._limits_on(self._gpu_type)
        self._straggling = 1.0
        chance = self.options.straggler_chance
        if self._rng is not None and chance and self._rng.random() < chance:
            self._straggling = self.options.straggler_factor
        self._slowdown = NONE
        self._choose_batch()

    def resume(self, at: float) -> None:
        """Continues training at time ``at``."""
        self._since = at
        self._begin_segment(at)
        if self._pending is not None:  # what a stop kept from being reported
            self._report_at = min(self._report_at, self.options.next_report(at))
            self._set_next()

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Stops training at time ``at``; with ``lost`` it falls back to the last saved state."""
        self._settle(at)
        if lost:
            self.progress, self.epoch = self._saved
        self._saved = (self.progress, self.epoch)
        self._since = None
        self._epoch_at = self._report_at = self.next_at = math.inf

    def advance(self, at: float) -> Measurement | None:
        """Advances the job to time ``at``; returns a report if one is due."""
        if self._epoch_at <= at:
            self._end_epoch(self._epoch_at)
            if self.finished:
                return self._take_pending()
        if self._report_at <= at and not self.finished:
            report_at, self._report_at = self._report_at, math.inf
            self._settle(report_at)
            self._choose_batch()
            pending = self._take_pending()
            self._begin_segment(report_at)
            return pending
        self._set_next()
        return None

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Sets a new slowdown by interference from time ``at`` on."""
        if slowdown == self._slowdown:
            return
        self._settle(at)
        self._slowdown = slowdown
        if self._since is not None:
            self._begin_segment(at)

    # -- inside --------------------------------------------------------------------------------------

    @property
    def config(self) -> Configuration:
        """The configuration it trains with."""
        return Configuration(
            nodes=len(self._shape),
            replicas=sum(self._shape),
            atomic_batch=self.atomic,
            accumulation=self.accumulation,
            gpu_type=self._gpu_type,
        )

    def _limits_on(self, gpu_type: str) -> Batch:
        """The spec's limits, and where several GPU types were measured what fits the memory of this one."""
        asked = self.spec.batch
        if asked is None:
            return self.truth.limits(gpu_type)
        if len(self.truth.gpu_types) == 1:
            return asked
        fits = self.truth.limits(gpu_type)
        return msgspec.structs.replace(asked, per_gpu_min=fits.per_gpu_min, per_gpu_max=fits.per_gpu_max)

    def _choose_batch(self) -> None:
        """The agent: fixed at the requested batch, or the best one by what it has measured so far."""
        limits, replicas = self._limits, sum(self._shape)
        if limits.mode == "fixed":
            batch = self.spec.requested_batch or limits.initial
            self.atomic, self.accumulation = best_batch.split_batch(batch, replicas, limits)
            return
        params = None
        if self._grad is not None:
            params = self._model.fit(self.table, gpu_type=self._gpu_type)
        if params is None or self._grad is None:
            self.atomic, self.accumulation = best_batch.first_batch(replicas, limits)
            return
        at = self._grad_batch if self._model.carries_noise else 0
        choice = best_batch.best_batch(params, self._grad, limits, len(self._shape), replicas, at)
        self.atomic, self.accumulation = choice.atomic_batch, choice.accumulation

    def _begin_segment(self, at: float) -> None:
        """A stretch of constant rate: what it measures now, how fast it goes, when it ends."""
        config = self.config
        step_s, sync_s = self.truth.step(self._shape, self.atomic, self._gpu_type)
        step_s *= self._straggling
        sync_s *= self._straggling
        crowded = sync_s * (self._slowdown.sync - 1.0)
        step_s, sync_s = step_s + crowded, sync_s + crowded
        grad = self.truth.gradients(config.batch, self.epoch)
        gain = gradient_noise.gain(*grad, config.batch / self._limits.initial)
        total_s = step_s + (step_s - sync_s) * self.accumulation
        self._rate = gain / total_s * self._slowdown.rate
        left_s = (self._marks[self.epoch] - self.progress) / self._rate
        self._epoch_at = at + left_s
        if self.options.resolution_s:
            self._epoch_at = self._rounded(at, left_s)
        self._measure(at, config, step_s, sync_s, grad)
        self._set_next()

    def _rounded(self, at: float, left_s: float) -> float:
        """The end of the epoch in whole units; one that lies beyond a report is never rounded to before it."""
        unit, report_s = self.options.resolution_s, self.options.report_s
        end = at + round(left_s / unit) * unit
        report_at = math.floor((at + left_s) / report_s) * report_s
        return end + 1e-6 if end == report_at < at + left_s else end

    def _measure(
        self, at: float, config: Configuration, step_s: float, sync_s: float, grad: tuple[float, float]
    ) -> None:
        if self._rng is not None and self.options.noise:
            compute = (step_s - sync_s) * math.exp(self._rng.normal(0.0, self.options.noise))
            sync_s *= math.exp(self._rng.normal(0.0, self.options.noise))
            step_s = compute + sync_s
        seen = Measurement(
            config=config,
            step_s=step_s,
            sync_s=sync_s,
            grad_sqr=grad[0],
            grad_var=grad[1],
            work=self.progress * self._limits.initial,
            epoch=float(self.epoch),
        )
        table = step_table.observe(self.table, seen)
        if table is not self.table or grad != self._grad:
            self.table, self._grad, self._grad_batch = table, grad, config.batch
            self._pending = seen
            self._report_at = min(self._report_at, self.options.next_report(at))

    def _end_epoch(self, at: float) -> None:
        self.progress = self._marks[self.epoch]
        self.epoch += 1
        self._saved = (self.progress, self.epoch)
        self._since = at
        if self.epoch >= self._epochs:
            self.finished = True
            self._since, self.next_at = None, math.inf
            return
        self._choose_batch()
        self._begin_segment(at)
        if self._pending is not None and at % self.options.report_s == 0.0:
            self._report_at = at  # an epoch that ends when reports are due is in this one

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self.progress += self._rate * (at - self._since)
            self._since = at

    def _set_next(self) -> None:
        self.next_at = min(self._epoch_at, self._report_at)

    def _take_pending(self) -> Measurement | None:
        pending, self._pending = self._pending, None
        return pending


class ServedTraining(WithoutRounds):
    """Implements ``Training`` from a ``ParameterServerTruth`` per GPU type.

    Args:
        spec: Specification of the job; must declare epochs, data size and batch size.
        truth_on: Returns the ground truth on a GPU type.
        options: Intervals, noise of measurements, stragglers.
        work: Examples seen at the beginning.
    """

    #: What the shipped constants assume.
    measured_link = TEN_GIGABIT

    def __init__(
        self,
        spec: JobSpec,
        truth_on: Callable[[str], ParameterServerTruth],
        options: TrainingOptions,
        *,
        work: float = 0.0,
    ) -> None:
        if spec.epochs is None or spec.data_size is None or spec.requested_batch is None:
            raise InputError(
                f"job {spec.name!r} with parameter servers must declare epochs, data_size and batch"
            )
        self._truth_on, self._options = truth_on, options
        self._batch = spec.requested_batch
        self._total = spec.epochs * spec.data_size
        self.work = self._saved = work
        self.finished = False
        self.next_at = math.inf
        self._config = Configuration(nodes=1, replicas=1, atomic_batch=1)
        self._step_s = math.inf
        self._steps_per_s = 0.0
        self._slowdown = NONE
        self._since: float | None = None
        self._report_at = math.inf
        self._unreported = False

    def place(self, placement: Placement) -> None:
        """Sets the placement of workers and servers."""
        nodes = list(dict.fromkeys(slot.node for slot in placement.slots))
        workers, servers = [0] * len(nodes), [0] * len(nodes)
        for slot in placement.slots:
            shape = workers if slot.role == WORKER else servers
            shape[nodes.index(slot.node)] += slot.replicas
        count = placement.count(WORKER)
        self._config = Configuration(
            nodes=placement.nodes,
            replicas=count,
            atomic_batch=math.ceil(self._batch / count),
            gpu_type=placement.gpu_type,
            servers=placement.count(SERVER),
        )
        truth = self._truth_on(placement.gpu_type)
        self._step_s = truth.step(workers, servers, self._batch)
        self._steps_per_s = truth.steps_per_s(workers, servers, self._batch)
        self._slowdown = NONE
        self._unreported = True

    def resume(self, at: float) -> None:
        """Continues training at time ``at``."""
        self._since = at
        if self._unreported:
            self._report_at = self._options.next_report(at)
        self._plan(at)

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Stops training at time ``at``; with ``lost`` it falls back to the last saved state."""
        self._settle(at)
        if lost:
            self.work = self._saved
        self._saved = self.work
        self._since = None
        self._report_at = self.next_at = math.inf

    def advance(self, at: float) -> Measurement | None:
        """Advances the job to time ``at``; returns a report if one is due."""
        self._settle(at)
        if self.work >= self._total * (1 - 1e-12):
            self.finished, self._since, self.next_at = True, None, math.inf
            return None
        report = None
        if self._report_at <= at:
            self._report_at, self._unreported = math.inf, False
            report = Measurement(config=self._config, step_s=self._step_s, work=self.work)
        self._plan(at)
        return report

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Sets a new slowdown of the whole step. Links faster than assumed give no gain: computation stays the same."""
        self._settle(at)
        self._slowdown = slowdown
        if self._since is not None:
            self._plan(at)

    @property
    def _rate(self) -> float:
        return self._steps_per_s * self._batch * self._slowdown.rate / max(self._slowdown.sync, 1.0)

    def _plan(self, at: float) -> None:
        self.next_at = min(at + (self._total - self.work) / self._rate, self._report_at)

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self.work = min(self.work + self._rate * (at - self._since), self._total)
            self._since = at
