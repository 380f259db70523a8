"""Training as predicted: a job proceeds at the speed of its fitted curve until its remaining work is done.

This takes the place of the ground truth where a live queue is simulated forward. The remaining work is uncertain:
``level`` is the quantile of it that is taken (0.5: the median), so that several simulations span the possible outcomes.

A job gets faster as its gradients get noisier, because larger batches then cost less (McCandlish et al., 2018):

    phi(work) = phi now x (course of past jobs like it, else work^0.4) x (work / work now)^slope

The course is ``FittedCurve.phi_ahead``, which the policy's own forecasts follow; ``slope`` is the deviation of one draw
from it. The speed is that of the curve on the same GPUs with the later noise scale in place of the present one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from coadapt.configure import Curve, FittedCurve
from coadapt.configure.best_batch import best_batch, best_goodput
from coadapt.model import Configuration, Measurement, Placement
from coadapt.model.job_spec import WORKER
from coadapt.model.snapshot import Phase
from coadapt.prediction.gradient_noise import carried
from coadapt.prediction.remaining.work import LEVELS, RemainingWork
from coadapt.scheduler.state.job_state import JobState
from coadapt.simulation.engine.interference import MEASURED_LINK, NONE, Slowdown
from coadapt.simulation.engine.training_model import WithoutRounds

#: A job that may never end is simulated as if it took this many times its longest likely duration.
_NEVER = 4.0
#: What a job of which nothing is measured is taken to need, in seconds, at whatever size: see ``prediction.remaining.work``.
_UNKNOWN_S = 600.0
#: A report is due after this share of the time left, and not sooner than this.
_REPORT_SHARE, _REPORT_S = 0.05, 60.0
#: The first report from a size that was not measured yet comes sooner, as an agent's does.
_NEWS_S = 30.0
#: Deviation of the logarithm of a speed; of that of a job whose GPUs and batch size change, at the end of its run and what its beginning
#: adds, as in the policy's own forecasts (``policies.coadapt.fluid_forecast``); and of the exponent by which the noise scale grows (``prediction.gradient_noise``).
_PACE_SD, _AT_END, _AT_BEGINNING, _SLOPE_SD = 0.15, 0.22, 0.33, 0.4


class Left(NamedTuple):
    """Work left. ``ends`` is False if the job never ends in this draw."""

    work: float
    ends: bool = True


def work_left(
    job: JobState, curve: Curve, now: float, level: float, known: RemainingWork | None = None
) -> Left:
    """Returns a quantile of the work that a job has left.

    Args:
        job: State of the job.
        curve: Its fitted curve.
        now: Present time; work done since the last report is subtracted.
        level: Quantile of the remaining work, between 0 and 1.
        known: ``curve.remaining()``, for a caller that asks several times.
    """
    if job.spec.batch is None and job.work is None:
        return _seconds_left(job, known or curve.remaining(), job.ran_s(now), level)
    if not curve.fitted:
        return Left(_UNKNOWN_S * level / (1 - level))
    left = known or curve.remaining()
    amount = left.quantile(level)
    if math.isinf(amount):
        return Left(_NEVER * left.quantiles[-1] + 1.0, ends=False)
    done = 0.0
    if job.phase is Phase.RUNNING and job.measured_at is not None:
        # what it has done since it last said so
        done = rate_at(curve, job.held) * max(now - max(job.measured_at, job.in_flight_since), 0.0)
    return Left(max(amount - done, 0.01 * amount))


def _seconds_left(job: JobState, total: RemainingWork, ran_s: float, level: float) -> Left:
    """Of a job without a model that says nothing: its length, given that it was longer than what it ran."""
    passed = _share_below(total, ran_s)
    if passed >= LEVELS[-1]:
        # longer than anything expected: as much again, in the median
        return Left(max(ran_s, 1.0) * (level / (1 - level) if job.spec.duration_s is None else 0.01))
    amount = total.quantile(passed + level * (1 - passed))
    if math.isinf(amount):
        return Left(_NEVER * total.quantiles[-1] + 1.0, ends=False)
    return Left(max(amount - ran_s, 0.0))


def _share_below(total: RemainingWork, amount: float) -> float:
    if amount <= 0:
        return 0.0
    return float(np.interp(amount, total.quantiles, LEVELS, left=0.0, right=1.0)) * (1 - total.never)


def rate_at(curve: Curve, placement: Placement) -> float:
    """Returns the work per second on ``placement``; 1 for a job of which only the duration is known."""
    if not curve.fitted:
        return 1.0
    replicas = placement.count(WORKER)
    found = float(curve.goodput(len(placement.shape), replicas, placement.gpu_type)) if replicas else 0.0
    return found if found > 0 else 1.0


class Luck(NamedTuple):
    """Deviation of one draw from the predicted speed of a job; both 0: no deviation."""

    #: Logarithm of its speed against the prediction's.
    pace: float = 0.0
    #: Added to the exponent by which its noise scale grows with its work, which is uncertain.
    slope: float = 0.0


EVEN = Luck()


def draw_luck(job: JobState, curve: Curve, rng: np.random.Generator) -> Luck:
    """Draws a deviation of the speed.

    A measured speed is known within 15%, as in ``prediction.remaining.adaptive_run``. The speed of a job whose size will
    change is less certain, the more work is still to come.
    """
    pace, slope = rng.normal(), rng.normal(0.0, _SLOPE_SD)
    if not isinstance(curve, FittedCurve) or curve.fixed is not None:
        return Luck(_PACE_SD * pace)
    left, done = curve.remaining().quantile(0.5), job.work or 0.0
    ahead = left / (left + done) if math.isfinite(left) and left + done > 0 else 1.0
    return Luck((_AT_END + _AT_BEGINNING * ahead) * pace, slope)


class PredictedTraining(WithoutRounds):
    """Implements ``Training`` for one job of a live queue.

    Args:
        curve: Fitted curve of the job.
        left: Work left, as drawn.
        done: Work done so far.
        luck: Deviation of the speed in this draw.
    """

    measured_link = MEASURED_LINK

    def __init__(self, curve: Curve, left: float, done: float, luck: Luck = EVEN) -> None:
        self._curve, self._left, self._done, self._luck = curve, left, done, luck
        self._growth = Growth(curve, done, left, luck.slope) if isinstance(curve, FittedCurve) else None
        self.finished = False
        self.next_at = math.inf
        self._placement = Placement()
        self._rate = 1.0
        self._slowdown = NONE
        self._since: float | None = None
        self._report_at = math.inf
        #: Most replicas that were measured, or that are taken to be by now.
        self._measured = curve.max_profiled_replicas

    def place(self, placement: Placement) -> None:
        """Sets the placement and the speed on it."""
        self._placement, self._slowdown = placement, NONE
        self._pace()

    def _pace(self) -> None:
        """Its speed from here on. Updated at every report: gradients get noisier during a run."""
        self._rate = rate_at(self._curve, self._placement) * math.exp(self._luck.pace)
        if self._growth is not None:
            self._rate *= self._growth.quicker(self._done, self._placement)

    def resume(self, at: float) -> None:
        """Continues training at time ``at``."""
        self._since = at
        self._plan(at)

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Stops training at time ``at``.

        Checkpoints are not modelled: what is lost with a node is small compared with the uncertainty of the prediction.
        """
        self._settle(at)
        self._since, self.next_at, self._report_at = None, math.inf, math.inf

    def advance(self, at: float) -> Measurement | None:
        """Advances the job to time ``at``; returns a report if one is due."""
        if at < self._report_at:
            self._left, self.finished, self.next_at = 0.0, True, math.inf
            return None
        self._settle(at)
        self._pace()
        self._plan(at)
        return self._report() if self._curve.fitted else None

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Sets a new slowdown by interference from time ``at`` on."""
        self._settle(at)
        self._slowdown = slowdown
        if self._since is not None:
            self._plan(at)

    def _settle(self, at: float) -> None:
        if self._since is not None:
            done = min((at - self._since) * self._rate * self._slowdown.rate, self._left)
            self._left, self._done, self._since = self._left - done, self._done + done, at

    def _plan(self, at: float) -> None:
        left_s = self._left / (self._rate * self._slowdown.rate)
        news = isinstance(self._curve, FittedCurve) and sum(self._placement.shape) > self._measured
        self._report_at = at + (_NEWS_S if news else max(_REPORT_SHARE * left_s, _REPORT_S))
        self.next_at = min(at + left_s, self._report_at)
        if at + left_s <= self._report_at:
            self._report_at = math.inf

    def _report(self) -> Measurement:
        shape, gpu_type = self._placement.shape, self._placement.gpu_type
        atomic, accumulation = self._split()
        config = Configuration(
            nodes=len(shape),
            replicas=sum(shape),
            atomic_batch=atomic,
            accumulation=accumulation,
            gpu_type=gpu_type,
        )
        step_s, sync_s = self._news(config)
        sqr, var = self._gradients(config)
        return Measurement(
            config=config, work=self._done, step_s=step_s, sync_s=sync_s, grad_sqr=sqr, grad_var=var
        )

    def _split(self) -> tuple[int, int]:
        if self._growth is not None:
            return self._growth.split(self._done, self._placement)
        shape = self._placement.shape
        choice = self._curve.config(len(shape), sum(shape), self._placement.gpu_type)
        return choice.atomic_batch, choice.accumulation

    def _gradients(self, config: Configuration) -> tuple[float, float] | tuple[None, None]:
        """As the agent will measure them: the policy shall see them grow as it would."""
        growth = self._growth
        found = growth.measured(self._done, config.batch, config.gpu_type) if growth is not None else None
        return (None, None) if found is None else found

    def _news(self, config: Configuration) -> tuple[float, float]:
        """Step and synchronisation as predicted, once for each larger size: policies let a job grow beyond what was measured
        only step by step. Else nothing: there is nothing to learn from a prediction."""
        model = self._curve.model(config.gpu_type) if isinstance(self._curve, FittedCurve) else None
        if model is None or config.replicas <= self._measured:
            return 0.0, 0.0
        self._measured = config.replicas
        where = (config.nodes, config.replicas, config.atomic_batch)
        step_s = float(model.step_time.step_time(*where))
        return step_s, max(step_s - float(model.step_time.grad_time(*where)), 0.0)


class Growth:
    """Growth of the noise scale of one job, and of its speed with it.

    Args:
        curve: Fitted curve of the job.
        done: Work done so far.
        left: Work left, about.
        slope: Deviation of this draw, added to the exponent by which the noise scale grows.
    """

    def __init__(self, curve: FittedCurve, done: float, left: float, slope: float = 0.0) -> None:
        self._curve, self._done, self._left, self._slope = curve, done, left, slope

    def phi(self, work: float) -> float | None:
        """Returns the noise scale once ``work`` is done; None if it is not known."""
        phi = self._curve.phi_ahead(work, self._left)
        if phi is None:
            return None
        # what was done in the first hundredth says nothing about a slope yet
        begun = max(self._done, 0.01 * (self._done + self._left))
        return phi * (max(work, begun) / begun) ** self._slope if begun > 0 else phi

    def gradients(self, work: float) -> tuple[float, float] | None:
        """Returns (grad_sqr, grad_var) for M0 once ``work`` is done, scaled so that grad_sqr = 1."""
        phi = self.phi(work)
        return None if phi is None else (1.0, phi / self._curve.limits().initial)

    def measured(self, work: float, batch: int, gpu_type: str) -> tuple[float, float] | None:
        """Returns (grad_sqr, grad_var) as an agent would measure them at ``batch``: phi rises with the batch size."""
        phi, model = self.phi(work), self._curve.model(gpu_type)
        if phi is None or model is None:
            return None
        if model.grad_batch:
            phi = math.exp(float(carried(math.log(phi), model.grad_batch, batch)))
        return 1.0, phi / model.initial_batch

    def quicker(self, work: float, placement: Placement) -> float:
        """Returns the speed on ``placement`` once ``work`` is done, as a multiple of what the curve says."""
        gpu_type, place = placement.gpu_type, (len(placement.shape), sum(placement.shape))
        model, then = self._curve.model(gpu_type), self.gradients(work)
        if model is None or then is None or not place[1]:
            return 1.0
        now = float(self._curve.goodput(*place, gpu_type))
        later = msgspec.structs.replace(model, grad=then)
        goodput = best_goodput(
            later, self._curve.limits(gpu_type), (place[0],), (place[1],), fixed=self._curve.fixed
        )
        found = float(goodput[0]) / now if now > 0 else 1.0
        return found if 0 < found < math.inf else 1.0

    def split(self, work: float, placement: Placement) -> tuple[int, int]:
        """Returns (examples per GPU and pass, extra passes) that the agent will choose once ``work`` is done."""
        gpu_type, nodes, replicas = placement.gpu_type, len(placement.shape), sum(placement.shape)
        model, then = self._curve.model(gpu_type), self.gradients(work)
        if model is None or then is None or self._curve.fixed is not None:
            choice = self._curve.config(nodes, replicas, gpu_type)
        else:
            limits = self._curve.limits(gpu_type)
            choice = best_batch(model.step_time, then, limits, nodes, replicas, model.grad_batch)
        return choice.atomic_batch, choice.accumulation
