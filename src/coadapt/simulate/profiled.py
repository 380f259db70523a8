"""Training of a job whose behaviour is known: real step times, real gradient noise, and the agent inside.

Rate of progress = gain / (step + s (step - sync)) in scale-invariant iterations per second, with s
accumulation steps and gain = (var + sqr) / (var/scale + sqr), scale = batch / M0; progress x M0 is work.
The agent measures each configuration when it first runs it, chooses its batch size anew at every end of
an epoch and at every report (``configure.best_batch``, the function the real agent uses), and reports at
multiples of ``report_s`` when there is something new.

``resolution_s=1`` rounds the ends of epochs to whole seconds, as the simulator published with Pollux does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from coadapt.configure import best_batch as batches
from coadapt.model import Batch, Configuration, JobSpec, Measurement, Placement
from coadapt.predict import efficiency, step_time
from coadapt.simulate.interference import MEASURED_LINK, NONE, Slowdown
from coadapt.simulate.truth import Truth


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How true the simulated world is to the real one."""

    report_s: float = 30.0
    resolution_s: float = 0.0
    #: Standard deviation of the logarithm of measured times.
    noise: float = 0.0
    #: Chance that a placement has a straggler, and how much longer its steps take.
    straggler_chance: float = 0.0
    straggler_factor: float = 1.5
    #: The step-time model agents choose their batch sizes by; None: the one of the policy.
    predictor: step_time.Method | None = None

    def next_report(self, at: float) -> float:
        """The first time after ``at`` when reports are due."""
        return (math.floor(at / self.report_s + 1e-9) + 1) * self.report_s


class ProfiledTraining:
    """Implements ``Training`` from a ``Truth``."""

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
        self._rng = rng
        self._marks = truth.epoch_marks()
        self._epochs = truth.epochs if spec.epochs is None else min(math.ceil(spec.epochs), truth.epochs)
        self.progress = progress
        self.epoch = sum(1 for mark in self._marks if mark <= progress)
        self.finished = False
        self.next_at = math.inf
        self.table = step_time.EMPTY_TABLE
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
        """See ``Training``."""
        self._placement, self._shape, self._gpu_type = placement, placement.shape, placement.gpu_type
        self._limits = self._limits_on(self._gpu_type)
        self._straggling = 1.0
        chance = self.options.straggler_chance
        if self._rng is not None and chance and self._rng.random() < chance:
            self._straggling = self.options.straggler_factor
        self._slowdown = NONE
        self._choose_batch()

    def resume(self, at: float) -> None:
        """See ``Training``."""
        self._since = at
        self._begin_segment(at)
        if self._pending is not None:  # what a stop kept from being reported
            self._report_at = min(self._report_at, self.options.next_report(at))
            self._set_next()

    def pause(self, at: float, *, lost: bool = False) -> None:
        """See ``Training``."""
        self._settle(at)
        if lost:
            self.progress, self.epoch = self._saved
        self._saved = (self.progress, self.epoch)
        self._since = None
        self._epoch_at = self._report_at = self.next_at = math.inf

    def advance(self, at: float) -> Measurement | None:
        """See ``Training``."""
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
        """See ``Training``."""
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
            self.atomic, self.accumulation = batches.split_batch(batch, replicas, limits)
            return
        method = self.options.predictor or "ours"
        params = None
        if self._grad is not None:
            params = step_time.fit(self.table, gpu_type=self._gpu_type, method=method)
        if params is None or self._grad is None:
            self.atomic, self.accumulation = batches.first_batch(replicas, limits)
            return
        # the noise scale is carried to other batch sizes by the product's model only
        at = self._grad_batch if method == "ours" else 0
        choice = batches.best_batch(params, self._grad, limits, len(self._shape), replicas, at)
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
        gain = efficiency.gain(*grad, config.batch / self._limits.initial)
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
        table = step_time.observe(self.table, seen)
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
